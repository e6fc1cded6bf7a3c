"""Firewall rules of a fleet: desired state, observed state, and the changes between them.

The rules apply to machines with the fleet's network tag. They allow ssh from the configured ranges
and all traffic between these machines. Rules with a lower priority deny all other inbound access.
Rules that this fleet did not create are never changed. Format of a rule:
https://cloud.google.com/compute/docs/reference/rest/v1/firewalls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Any

from .changes import Outcome
from .compute import ComputeApi
from .deletion import CurrentResource, delete_exactly
from .errors import BadAnswer, Different, NotConfigured
from .fields import Fields
from .fleet_name import parse_fleet_name
from .names import last_part

#: Prefix of the description of rules that the collection created for a fleet.
DESCRIPTION_PREFIX = "Made by tpufleet.core.vpc_firewall"
ALLOW_PRIORITY, DENY_PRIORITY = 1000, 1001
MOSH_PORTS = "60000-61000"
"""UDP ports of mosh (mosh-server(1))."""
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
_IMMUTABLE = ("name", "network", "direction")


@dataclass(frozen=True)
class Rule:
    """One firewall rule for inbound access. An empty tuple means that the field is not set.

    ``id`` is the API's id of an existing rule, which no later rule of the same name has. It is
    empty for a desired rule.
    """

    name: str
    network: str
    target_tags: tuple[str, ...]
    description: str
    priority: int = ALLOW_PRIORITY
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    source_tags: tuple[str, ...] = ()
    direction: str = "INGRESS"
    disabled: bool = False
    id: str = ""

    def belongs_to(self, fleet: str) -> bool:
        """Whether the collection created this rule for the fleet of this name."""
        return self.description.startswith(f"{_description_prefix(fleet)}: ")

    @property
    def allows_everyone(self) -> bool:
        """Whether this rule allows access from every address."""
        return bool(self.allowed) and not self.disabled and open_to_all(self.source_ranges)

    def compared_fields(self) -> dict[str, Any]:
        """Return the fields that are compared with the desired state and shown in a diff."""
        return {
            "network": last_part(self.network),
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
        """Return the rule as the JSON body of an API request.

        Empty lists are included, because a PATCH keeps the values of fields that are missing.
        """
        network = self.network
        if "/" not in network:
            network = f"projects/{project}/global/networks/{network}"
        return {
            "name": self.name,
            "network": network,
            "description": self.description,
            "direction": self.direction,
            "disabled": self.disabled,
            "priority": self.priority,
            "sourceRanges": list(self.source_ranges),
            "sourceTags": list(self.source_tags),
            "targetTags": list(self.target_tags),
            **({"allowed": _protocols(self.allowed)} if self.allowed else {}),
            **({"denied": _protocols(self.denied)} if self.denied else {}),
        }


def desired_rules(
    name: str,
    network: str,
    tag: str,
    ssh_from: Sequence[str],
    *,
    fleet: str,
    anyone: bool,
    mosh: bool = False,
) -> tuple[Rule, ...]:
    """Return the firewall rules that a fleet should have. Raises NotConfigured.

    The names of the rules begin with ``name``, and ``tag`` is the network tag of the machines of
    ``fleet``. If ``ssh_from`` is empty, no rule allows ssh from outside the fleet. ``anyone``
    confirms that ``ssh_from`` may cover every address. With ``mosh``, the rule for ssh also allows
    mosh.
    """
    parse_fleet_name(fleet)
    for option, text in (("name", name), ("tag", tag)):
        if not _NAME.fullmatch(text):
            raise NotConfigured(
                f"{option}: invalid ({text!r:.60}). Use up to 52 characters of a-z, 0-9 "
                "and -, beginning with a letter"
            )
    ranges = [_parse_range(text) for text in ssh_from]
    range_texts = [str(net) for net in ranges]
    if open_to_all(range_texts) and not anyone:
        raise NotConfigured(
            f"ssh_from allows everyone ({', '.join(range_texts)}). Set your own ranges "
            "(`curl -4 https://ifconfig.me` shows your address), or set anyone: true"
        )

    def rule(kind: str, description: str, **fields: Any) -> Rule:
        return Rule(
            f"{name}-{kind}",
            network,
            (tag,),
            f"{_description_prefix(fleet)}: {description}",
            **fields,
        )

    rules = [rule("inside", "everything within the fleet", allowed=("all",), source_tags=(tag,))]
    allowed = ("tcp:22", *([f"udp:{MOSH_PORTS}"] if mosh else []))
    # A rule can't have both IPv4 and IPv6 ranges.
    for kind, family in (("ssh", IPv4Network), ("ssh6", IPv6Network)):
        family_ranges = tuple(sorted({str(net) for net in ranges if isinstance(net, family)}))
        if family_ranges:
            rules.append(rule(kind, "ssh", allowed=allowed, source_ranges=family_ranges))
    for kind, any_address in (("rest", "0.0.0.0/0"), ("rest6", "::/0")):
        deny_fields = {
            "priority": DENY_PRIORITY,
            "denied": ("all",),
            "source_ranges": (any_address,),
        }
        rules.append(rule(kind, "nothing else", **deny_fields))
    return tuple(rules)


def rule_names(name: str) -> tuple[str, ...]:
    """Return the names of all rules that a fleet can have. All begin with ``name``."""
    return tuple(f"{name}-{kind}" for kind in ("inside", "ssh", "ssh6", "rest", "rest6"))


def open_to_all(ranges: Iterable[str]) -> bool:
    """Return whether the ranges together cover all IPv4 or all IPv6 addresses."""
    for family in (IPv4Network, IPv6Network):
        nets = [net for net in map(_parse_network, ranges) if isinstance(net, family)]
        if any(net.prefixlen == 0 for net in collapse_addresses(nets)):
            return True
    return False


def parse_rule(data: Mapping[str, Any]) -> Rule:
    """Parse a firewall rule from the API's JSON. Raises BadAnswer."""
    name = Fields(data, "a firewall rule").text("name")
    if not name:
        raise BadAnswer("malformed API response: a firewall rule without a name")
    fields = Fields(data, f"firewall rule {name}")
    return Rule(
        name,
        fields.text("network"),
        fields.text_list("targetTags"),
        fields.text("description"),
        priority=fields.number("priority") if "priority" in data else ALLOW_PRIORITY,
        allowed=_protocol_names(fields.nested_list("allowed")),
        denied=_protocol_names(fields.nested_list("denied")),
        source_ranges=fields.text_list("sourceRanges"),
        source_tags=fields.text_list("sourceTags"),
        direction=fields.text("direction") or "INGRESS",
        disabled=fields.flag("disabled"),
        id=fields.id(),
    )


def immutable_differences(observed: Rule, desired: Rule) -> list[str]:
    """Describe how an existing rule differs from the desired one in fields that can't be changed.

    Returns one text for each such field.
    """
    before, after = observed.compared_fields(), desired.compared_fields()
    pairs = [(key, before[key], after[key]) for key in ("network", "direction")]
    # An allow rule can't be changed into a deny rule.
    kinds = ["deny" if rule.denied else "allow" for rule in (observed, desired)]
    pairs.append(("kind", *kinds))
    return [
        f"{key} is {observed_value}, expected {desired_value}"
        for key, observed_value, desired_value in pairs
        if observed_value != desired_value
    ]


def ensure_rules(
    api: ComputeApi,
    name: str,
    desired: Sequence[Rule],
    *,
    fleet: str,
    timeout: float,
    check: bool = False,
    recreate: bool = False,
) -> Outcome:
    """Create, change and delete the fleet's rules until they match ``desired``.

    ``name`` is the beginning of the rules' names, ``fleet`` is the fleet's name, and ``timeout`` is
    in seconds. Raises Different before any change if another fleet or a user created a rule with
    the name of one of the fleet's rules, or if a rule differs in an immutable field and
    ``recreate`` is false. With ``check``, the outcome describes the changes, but nothing is
    changed.
    """
    deadline = api.polling.deadline_in(timeout)
    all_rules = [parse_rule(rule) for rule in api.list_firewalls()]
    observed = {rule.name: rule for rule in all_rules if rule.name in rule_names(name)}
    _refuse_foreign(observed.values(), fleet, api.settings.project)
    desired_by_name = {rule.name: rule for rule in desired}
    to_recreate = _to_recreate(observed, desired_by_name, recreate)
    before = {rule.name: rule.compared_fields() for rule in observed.values()}
    after = {rule.name: rule.compared_fields() for rule in desired_by_name.values()}
    if not check:
        # Create deny rules first and delete them last, so that at no time more access is allowed
        # than desired.
        for rule in sorted(desired_by_name.values(), key=lambda rule: not rule.denied):
            if rule.name in to_recreate:
                _delete(api, observed[rule.name], deadline)
            if rule.name in to_recreate or rule.name not in observed:
                api.insert_firewall(rule.body(api.settings.project), deadline)
            elif after[rule.name] != before[rule.name]:
                body = rule.body(api.settings.project)
                changes = {key: value for key, value in body.items() if key not in _IMMUTABLE}
                api.patch_firewall(rule.name, changes, deadline)
        for rule in sorted(observed.values(), key=lambda rule: bool(rule.denied)):
            if rule.name not in desired_by_name:
                _delete(api, rule, deadline)
    changed = before != after
    state = "are unchanged"
    if changed:
        state = ("would be" if check else "are") + (" configured" if desired else " deleted")
    msg = f"the firewall rules {name}-* {state}"
    warnings = tuple(_warnings(all_rules, desired, fleet, api.settings.project))
    return Outcome(changed, msg, before, after, warnings=warnings)


def _to_recreate(
    observed: Mapping[str, Rule], desired: Mapping[str, Rule], recreate: bool
) -> set[str]:
    names = set()
    for rule in desired.values():
        if rule.name in observed and (
            differences := immutable_differences(observed[rule.name], rule)
        ):
            if not recreate:
                raise Different(
                    f"firewall rule {rule.name} exists, but {'; '.join(differences)}, which can't "
                    "be changed. Recreate it: ansible-playbook playbooks/create.yml -e "
                    "recreate=true (in a task: recreate: true)"
                )
            names.add(rule.name)
    return names


def _description_prefix(fleet: str) -> str:
    return f"{DESCRIPTION_PREFIX} for fleet {fleet}"


def _refuse_foreign(rules: Iterable[Rule], fleet: str, project: str) -> None:
    for rule in rules:
        if not rule.belongs_to(fleet):
            raise Different(
                f"firewall rule {rule.name}: fleet {fleet} did not create it, so it is not changed "
                f"(its description: {rule.description!r:.90}). Set another name for the fleet's "
                "rules (fleet_firewall.name), or give it to this fleet: gcloud compute "
                f"firewall-rules update {rule.name} --project={project} "
                f"--description='{_description_prefix(fleet)}: '"
            )


def _delete(api: ComputeApi, rule: Rule, deadline: float) -> None:
    action = f"delete the firewall rule {rule.name}"

    def read() -> CurrentResource | None:
        current = api.get_firewall(rule.name)
        return current and CurrentResource(parse_rule(current).id)

    delete_exactly(
        api,
        action,
        rule.id,
        deadline,
        read=read,
        delete=lambda: api.delete_firewall(rule.name),
    )


def _warnings(
    all_rules: Iterable[Rule], desired: Sequence[Rule], fleet: str, project: str
) -> Iterable[str]:
    for rule in desired:
        if rule.allows_everyone:
            yield f"firewall rule {rule.name} allows ssh from everywhere (anyone: true)"
    tags = {tag for rule in desired for tag in rule.target_tags}
    networks = {rule.compared_fields()["network"] for rule in desired}
    for rule in all_rules:
        applies = not rule.target_tags or tags & set(rule.target_tags)
        if (
            applies
            and not rule.belongs_to(fleet)
            and rule.allows_everyone
            and rule.direction == "INGRESS"
            and rule.compared_fields()["network"] in networks
            and rule.priority <= desired[0].priority
        ):
            yield (
                f"firewall rule {rule.name} allows everyone to reach the fleet's machines "
                f"({', '.join(rule.allowed)}), because it takes precedence over the fleet's rules. "
                f"Fleet {fleet} did not create it. If nobody needs it, delete it: "
                f"gcloud compute firewall-rules delete {rule.name} --project={project}"
            )


def _parse_range(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text.strip())
    except ValueError as error:
        raise NotConfigured(
            f"ssh_from: expected ranges such as 203.0.113.7/32 ({text!r:.60}: {error})"
        ) from None


def _parse_network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _protocols(names: Iterable[str]) -> list[dict[str, Any]]:
    pairs = [name.partition(":") for name in names]
    return [
        {"IPProtocol": protocol} | ({"ports": [ports]} if ports else {})
        for protocol, _, ports in pairs
    ]


def _protocol_names(entries: Iterable[Fields]) -> tuple[str, ...]:
    names: list[str] = []
    for entry in entries:
        protocol = entry.text("IPProtocol")
        names += [f"{protocol}:{port}" for port in entry.text_list("ports")] or [protocol]
    return tuple(names)
