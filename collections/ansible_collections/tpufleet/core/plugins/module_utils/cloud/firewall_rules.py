"""The firewall rules of a fleet, as they should be and as they are. Pure: no network, no files.

Three rules for the machines that have the fleet's network tag: ssh from given ranges, everything
among themselves, and a denial of all else that stands right behind the two. The shape is
https://cloud.google.com/compute/docs/reference/rest/v1/firewalls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Any

from .tpu_errors import NotConfigured
from .tpu_nodes import BadNode

#: A rule whose description begins so is ours, and no other is ever touched.
MARK = "Made by tpufleet.core.vpc_firewall"
ALLOW_PRIORITY, DENY_PRIORITY = 1000, 1001
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
_LISTS = ("sourceRanges", "sourceTags", "targetTags")


@dataclass(frozen=True)
class Rule:
    """One firewall rule for what comes in. Empty lists: not said."""

    name: str
    network: str
    priority: int
    allowed: tuple[str, ...]
    denied: tuple[str, ...]
    source_ranges: tuple[str, ...]
    source_tags: tuple[str, ...]
    target_tags: tuple[str, ...]
    description: str
    direction: str = "INGRESS"
    disabled: bool = False

    @property
    def ours(self) -> bool:
        """Tell whether this project made it."""
        return self.description.startswith(MARK)

    @property
    def for_everybody(self) -> bool:
        """Tell whether it lets the whole world in."""
        return bool(self.allowed) and not self.disabled and open_to_all(self.source_ranges)

    def facts(self) -> dict[str, Any]:
        """Give what people compare."""
        return {
            "network": self.network.rsplit("/", 1)[-1],
            "direction": self.direction,
            "priority": self.priority,
            "disabled": self.disabled,
            "allowed": sorted(self.allowed),
            "denied": sorted(self.denied),
            "source_ranges": sorted(self.source_ranges),
            "source_tags": sorted(self.source_tags),
            "target_tags": sorted(self.target_tags),
        }

    def body(self, project: str) -> dict[str, Any]:
        """Give it as the API takes it."""
        network = self.network
        if "/" not in network:
            network = f"projects/{project}/global/networks/{network}"
        sides = {
            "sourceRanges": self.source_ranges,
            "sourceTags": self.source_tags,
            "targetTags": self.target_tags,
        }
        return {
            "name": self.name,
            "network": network,
            "description": self.description,
            "direction": self.direction,
            "disabled": self.disabled,
            "priority": self.priority,
            **{key: list(items) for key, items in sides.items() if items},
            **({"allowed": _protocols(self.allowed)} if self.allowed else {}),
            **({"denied": _protocols(self.denied)} if self.denied else {}),
        }


def wanted_rules(
    name: str, network: str, tag: str, ssh_from: Sequence[str], *, anyone: bool
) -> tuple[Rule, ...]:
    """Give the rules that a fleet should have. Raises NotConfigured, one line each.

    Without ``ssh_from`` nobody gets in by ssh. ``anyone`` has to be said for the whole world.
    """
    for option, text in (("name", name), ("tag", tag)):
        if not _NAME.fullmatch(text):
            raise NotConfigured(
                f"{option} is {text!r:.60}, wanted are up to 52 of a-z, 0-9 and -, a letter first"
            )
    ranges = [_range(text) for text in ssh_from]
    texts = [str(each) for each in ranges]
    if open_to_all(texts) and not anyone:
        raise NotConfigured(
            f"ssh_from is {', '.join(texts)}, which is everybody: name your own ranges "
            "(`curl -4 https://ifconfig.me` says your address), or say anyone: true if you mean it"
        )

    def rule(kind: str, words: str, **fields: Any) -> Rule:
        plain: dict[str, Any] = {
            "priority": ALLOW_PRIORITY,
            "allowed": (),
            "denied": (),
            "source_ranges": (),
            "source_tags": (),
        }
        about = f"{MARK}: {words}"
        return Rule(
            f"{name}-{kind}",
            network,
            target_tags=(tag,),
            description=about,
            **plain | fields,
        )

    rules = [rule("inside", "all among the fleet", allowed=("all",), source_tags=(tag,))]
    # Google takes either kind of addresses in a rule, not both.
    for kind, family in (("ssh", IPv4Network), ("ssh6", IPv6Network)):
        mine = tuple(sorted({str(each) for each in ranges if isinstance(each, family)}))
        if mine:
            rules.append(rule(kind, "ssh", allowed=("tcp:22",), source_ranges=mine))
    for kind, everywhere in (("rest", "0.0.0.0/0"), ("rest6", "::/0")):
        last = {"priority": DENY_PRIORITY, "denied": ("all",), "source_ranges": (everywhere,)}
        rules.append(rule(kind, "nothing else", **last))
    return tuple(rules)


def rule_names(name: str) -> tuple[str, ...]:
    """Name all rules that a fleet of this name may have."""
    return tuple(f"{name}-{kind}" for kind in ("inside", "ssh", "ssh6", "rest", "rest6"))


def open_to_all(ranges: Iterable[str]) -> bool:
    """Tell whether ranges, put together, are the whole world; two halves are, too."""
    for family in (IPv4Network, IPv6Network):
        mine = [net for net in map(_lenient, ranges) if isinstance(net, family)]
        if any(net.prefixlen == 0 for net in collapse_addresses(mine)):
            return True
    return False


def parse_rule(data: Mapping[str, Any]) -> Rule:
    """Read a firewall rule of the API's JSON. Raises BadNode (one line) for what is none."""
    name = data.get("name")
    if not isinstance(name, str) or not name:
        raise BadNode(f"a firewall rule has a name, but the API sent {name!r:.60}")
    lists: dict[str, tuple[str, ...]] = {}
    for key in _LISTS:
        items = data.get(key) or []
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise BadNode(f"firewall rule {name}: {key} is {items!r:.60}, wanted are texts")
        lists[key] = tuple(items)
    priority = data.get("priority", 1000)
    return Rule(
        name,
        str(data.get("network") or ""),
        priority if isinstance(priority, int) else 1000,
        _words(data.get("allowed"), name),
        _words(data.get("denied"), name),
        lists["sourceRanges"],
        lists["sourceTags"],
        lists["targetTags"],
        str(data.get("description") or ""),
        str(data.get("direction") or "INGRESS"),
        data.get("disabled") is True,
    )


def immutable_differences(have: Rule, want: Rule) -> list[str]:
    """Name what differs and can't be changed on a rule that exists: its network and direction."""
    pairs = [(key, have.facts()[key], want.facts()[key]) for key in ("network", "direction")]
    # A rule that allows can't become one that denies.
    pairs.append(("kind", "deny" if have.denied else "allow", "deny" if want.denied else "allow"))
    return [f"{key} is {is_}, wanted {wanted}" for key, is_, wanted in pairs if is_ != wanted]


def _range(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text.strip())
    except ValueError as wrong:
        raise NotConfigured(
            f"ssh_from has {text!r:.60}, wanted are ranges such as 203.0.113.7/32 ({wrong})"
        ) from None


def _lenient(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _protocols(words: Iterable[str]) -> list[dict[str, Any]]:
    parts = [word.partition(":") for word in words]
    return [
        {"IPProtocol": protocol} | ({"ports": [ports]} if ports else {})
        for protocol, _, ports in parts
    ]


def _words(entries: object, name: str) -> tuple[str, ...]:
    found: list[str] = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, Mapping):
            raise BadNode(f"firewall rule {name}: {entry!r:.60} is no protocol with its ports")
        protocol, ports = str(entry.get("IPProtocol") or ""), entry.get("ports") or []
        found += [f"{protocol}:{port}" for port in ports] if ports else [protocol]
    return tuple(found)
