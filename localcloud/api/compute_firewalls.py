"""Compute API methods for ``firewalls``. The rules are stored, but filter no packets.

The fields are those of the schema ``Firewall`` in the discovery document of compute v1 (revision
20261106). Validation follows https://cloud.google.com/firewall/docs/firewalls.
"""

import re
from collections.abc import Mapping
from functools import partial
from ipaddress import ip_network
from typing import Any

from localcloud.api.compute_errors import ComputeError, bad_value, required
from localcloud.api.compute_frame import PROJECT, SELECTION, Collection
from localcloud.api.compute_operation_table import ComputeOperation
from localcloud.api.compute_table import Resource
from localcloud.api.message import Choice, Message, Repeated, read
from localcloud.api.routing import Call, Route, camel_case

_RULE = Message({"IPProtocol": str, "ports": Repeated(str)})
FIREWALL = Message(
    {
        **dict.fromkeys(("creationTimestamp", "id", "kind", "selfLink")),
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
_EGRESS_ONLY = ("destinationRanges",)


def read_resource(value: Mapping[str, Any], kind: Message) -> dict[str, Any]:
    """Validate a resource from a request and return it without output-only fields.

    ``kind`` is the resource's message type. False and null values remain, because they can replace
    a stored value or a default value. Raises HTTP 400 that names the invalid field.
    """
    read(value, kind, "resource")
    named = {camel_case(key): item for key, item in value.items()}
    return {key: item for key, item in named.items() if kind.fields[key] is not None}


def complete_rule(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule as stored, with default values; its ``network`` must be a full resource name.

    Raises HTTP 400 that names the invalid field.
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
    actions = [key for key in ("allowed", "denied") if key in rule]
    if not actions:
        raise required("allowed")
    if len(actions) > 1:
        raise ComputeError(400, "invalid", "Set either allowed or denied in a rule, not both")
    rule[actions[0]] = [_protocol(entry, actions[0], i) for i, entry in enumerate(rule[actions[0]])]
    return _with_default_range(rule)


def check_name(name: str) -> None:
    """Raise HTTP 400 if ``name`` is not a valid name of a Compute resource."""
    if not name:
        raise required("name")
    if not NAME.fullmatch(name):
        raise bad_value("name", name, f"Must be a match of regex '{NAME.pattern}'")


def _with_default_range(rule: dict[str, Any]) -> dict[str, Any]:
    """Validate a rule's sources and destinations, and add the default: any address."""
    allowed, forbidden = _INGRESS_ONLY, _EGRESS_ONLY
    if rule["direction"] == "EGRESS":
        allowed, forbidden = forbidden, allowed
    for key in forbidden:
        if key in rule:
            reason = f"{rule['direction']} rules can't have {key}. Use {' or '.join(allowed)}"
            raise bad_value(key, rule[key], reason)
    for key in ("sourceRanges", "destinationRanges"):
        for index, text in enumerate(rule.get(key, ())):
            _check_range(f"{key}[{index}]", text)
    for key in ("sourceTags", "targetTags"):
        for index, text in enumerate(rule.get(key, ())):
            if not NAME.fullmatch(text):
                reason = f"Must be a match of regex '{NAME.pattern}'"
                raise bad_value(f"{key}[{index}]", text, reason)
    ranges = [*rule.get("sourceRanges", ()), *rule.get("destinationRanges", ())]
    if len({ip_network(text).version for text in ranges}) > 1:
        reason = "A rule can contain either IPv4 or IPv6 ranges, but not both"
        raise bad_value("sourceRanges", ranges, reason)
    if not any(key in rule for key in allowed):
        rule[allowed[0]] = ["0.0.0.0/0"]
    return rule


def _check_range(field: str, text: str) -> None:
    try:
        ip_network(text)
    except ValueError:
        raise bad_value(field, text, "Must be a valid CIDR range without host bits") from None


def _protocol(entry: Mapping[str, Any], field: str, index: int) -> dict[str, Any]:
    path = f"{field}[{index}]"
    protocol = (entry.get("IPProtocol") or "").lower()
    is_number = protocol.isascii() and protocol.isdigit() and int(protocol) <= 255
    if protocol not in _PROTOCOLS and not is_number:
        raise bad_value(f"{path}.IPProtocol", protocol, f"Must be 0 to 255 or one of {_PROTOCOLS}")
    ports = entry.get("ports") or []
    if ports and protocol not in _WITH_PORTS:
        raise bad_value(f"{path}.ports", ports, f"{protocol} has no ports")
    for text in ports:
        match = _PORTS.fullmatch(text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= 65535:
            raise bad_value(f"{path}.ports", text, "Must be a port or a range such as 80-90")
    return {"IPProtocol": protocol, **({"ports": list(ports)} if ports else {})}


class Firewalls(Collection):
    """Handlers of the methods for firewall rules."""

    kind = "firewall"
    fields = ("network", "direction", "priority", "disabled", "description", "sourceRanges")

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        collection, changing = f"{PROJECT}/global/firewalls", self._frame.changing
        resource = f"{collection}/{{firewall}}"
        return (
            Route("compute.firewalls.list", "GET", collection, self._list, SELECTION),
            Route("compute.firewalls.get", "GET", resource, self._get),
            changing("compute.firewalls.insert", "POST", collection, self._insert),
            changing(
                "compute.firewalls.patch", "PATCH", resource, partial(self._change, verb="patch")
            ),
            changing(
                "compute.firewalls.update", "PUT", resource, partial(self._change, verb="update")
            ),
            changing("compute.firewalls.delete", "DELETE", resource, self._delete),
        )

    def _insert(self, call: Call) -> ComputeOperation:
        rule = self._complete(read_resource(call.json(), FIREWALL))
        firewall = self._table.add("firewalls", "global", rule["name"], rule)
        return self._begin(call, "insert", firewall)

    def _delete(self, call: Call) -> ComputeOperation:
        rule = self._find(call)
        self._table.remove(rule.uid)
        return self._begin(call, "delete", rule)

    def _change(self, call: Call, verb: str) -> ComputeOperation:
        """Replace a rule or, if ``verb`` is ``patch``, its given fields; null removes a field."""
        requested, rule = read_resource(call.json(), FIREWALL), self._find(call)
        fixed = {key: rule.body[key] for key in ("name", "network")}
        changed = self._complete({**(rule.body if verb == "patch" else fixed), **requested})
        fixed["direction"] = rule.body["direction"]
        for key, value in fixed.items():
            if changed[key] != value:
                reason = f"The rule's {key} is {value}. To change it, create another rule"
                raise bad_value(key, changed[key], reason)
        self._table.change(rule.uid, changed)
        return self._begin(call, verb, rule)

    def _complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        reference = body.get("network") or "global/networks/default"
        network = self._frame.name_of(reference)
        rule = complete_rule({**body, "network": network})
        parent, _, name = network.rpartition("/")
        if "/" not in reference or parent != self._full("global/networks"):
            reason = "Must be a network of this project, such as global/networks/default."
            raise bad_value("network", reference, reason)
        if self._table.get("networks", "global", name) is None:
            reason = "The referenced network resource cannot be found."
            raise bad_value("network", network, reason)
        return rule

    def _write(self, rule: Resource) -> dict[str, Any]:
        return {**super()._write(rule), "network": self._frame.absolute(rule.body["network"])}
