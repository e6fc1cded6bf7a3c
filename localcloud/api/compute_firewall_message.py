"""The Firewall message: what a caller may say of a rule, checked and its gaps filled in.

Fields are those of the schema ``Firewall`` in the discovery document of compute v1 (revision
20261106), rules those of https://cloud.google.com/firewall/docs/firewalls.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any

from localcloud.api.compute_errors import ComputeError, bad_value, required
from localcloud.api.message import Choice, Message, Repeated, read
from localcloud.api.routing import camel_case

_RULE = Message({"IPProtocol": str, "ports": Repeated(str)})
_OUTPUT = ("creationTimestamp", "id", "kind", "selfLink")
FIREWALL = Message(
    {
        **dict.fromkeys(_OUTPUT),
        "allowed": Repeated(_RULE),
        "denied": Repeated(_RULE),
        "description": str,
        "destinationRanges": Repeated(str),
        "direction": Choice(("INGRESS", "EGRESS")),
        "disabled": bool,
        "logConfig": Message({"enable": bool, "metadata": str}),
        "name": str,
        "network": str,
        "priority": int,
        "sourceRanges": Repeated(str),
        "sourceServiceAccounts": Repeated(str),
        "sourceTags": Repeated(str),
        "targetServiceAccounts": Repeated(str),
        "targetTags": Repeated(str),
    }
)
NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_PORTS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_PROTOCOLS = ("tcp", "udp", "icmp", "esp", "ah", "ipip", "sctp", "all")
_WITH_PORTS = ("tcp", "udp", "sctp", "6", "17", "132")
_INGRESS_ONLY = ("sourceRanges", "sourceTags", "sourceServiceAccounts")


def said(value: Mapping[str, Any]) -> dict[str, Any]:
    """Read a caller's Firewall; what is false or null stays, for it may change what stands.

    Raises a 400 that names the field.
    """
    read(value, FIREWALL, "resource")
    named = {camel_case(key): item for key, item in value.items()}
    return {key: item for key, item in named.items() if key not in _OUTPUT}


def checked(body: Mapping[str, Any]) -> dict[str, Any]:
    """Give a rule, whole, as it will be stored; ``network`` is a full name already.

    Raises a 400 that names the field.
    """
    rule = {key: value for key, value in body.items() if value not in (None, [], "")}
    check_name(rule.get("name", ""))
    rule = {
        "direction": "INGRESS",
        "priority": 1000,
        "disabled": False,
        "logConfig": {"enable": False},
        **rule,
    }
    if not 0 <= rule["priority"] <= 65535:
        raise bad_value("priority", rule["priority"], "It must be 0 to 65535")
    given = [key for key in ("allowed", "denied") if key in rule]
    if not given:
        raise required("allowed")
    if len(given) > 1:
        raise ComputeError(400, "invalid", "A rule either allows or denies, not both")
    rule[given[0]] = [_protocol(entry, given[0], i) for i, entry in enumerate(rule[given[0]])]
    return _with_ends(rule)


def check_name(name: str) -> None:
    """Raise a 400 for a name that no Compute resource may have."""
    if not name:
        raise required("name")
    if not NAME.fullmatch(name):
        raise bad_value("name", name, f"Must be a match of regex '{NAME.pattern}'")


def _with_ends(rule: dict[str, Any]) -> dict[str, Any]:
    """Check where a rule's packets come from and go to; everywhere if nothing is said."""
    inwards = rule["direction"] == "INGRESS"
    if inwards and "destinationRanges" in rule:
        raise bad_value("destinationRanges", rule["destinationRanges"], "The rule is for INGRESS")
    for key in () if inwards else _INGRESS_ONLY:
        if key in rule:
            raise bad_value(key, rule[key], "The rule is for EGRESS")
    for key in ("sourceRanges", "destinationRanges"):
        for index, text in enumerate(rule.get(key, ())):
            _check_range(f"{key}[{index}]", text)
    for key in ("sourceTags", "targetTags"):
        for index, text in enumerate(rule.get(key, ())):
            if not NAME.fullmatch(text):
                why = f"Must be a match of regex '{NAME.pattern}'"
                raise bad_value(f"{key}[{index}]", text, why)
    ends = _INGRESS_ONLY if inwards else ("destinationRanges",)
    if not any(key in rule for key in ends):
        rule[ends[0]] = ["0.0.0.0/0"]
    return rule


def _check_range(field: str, text: str) -> None:
    try:
        ip_network(text)
    except ValueError:
        raise bad_value(field, text, "Must be a valid CIDR range, its host bits zero") from None


def _protocol(entry: Mapping[str, Any], field: str, index: int) -> dict[str, Any]:
    where = f"{field}[{index}]"
    protocol = (entry.get("IPProtocol") or "").lower()
    number = protocol.isascii() and protocol.isdigit() and int(protocol) <= 255
    if protocol not in _PROTOCOLS and not number:
        raise bad_value(f"{where}.IPProtocol", protocol, f"Must be 0 to 255 or one of {_PROTOCOLS}")
    ports = entry.get("ports") or []
    if ports and protocol not in _WITH_PORTS:
        raise bad_value(f"{where}.ports", ports, f"{protocol} has no ports")
    for text in ports:
        found = _PORTS.fullmatch(text)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last <= 65535:
            raise bad_value(f"{where}.ports", text, "Must be a port or a range such as 80-90")
    return {"IPProtocol": protocol, **({"ports": list(ports)} if ports else {})}
