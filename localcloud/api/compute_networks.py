"""Compute API methods for ``networks`` and ``subnetworks``.

The API can have several networks, but all machines of the local cloud are in one real network.
"""

from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from localcloud.api.compute_errors import bad_value, in_use, missing
from localcloud.api.compute_firewalls import check_name, complete_rule, read_resource
from localcloud.api.compute_frame import (
    AGGREGATED,
    AGGREGATED_QUERY,
    PROJECT,
    SELECTION,
    Collection,
    Frame,
)
from localcloud.api.compute_operation_table import ComputeOperation
from localcloud.api.compute_table import Resource
from localcloud.api.message import Message
from localcloud.api.node_resources import NETWORKS, NodeResources
from localcloud.api.routing import Call, Route

_NETWORK = Message(
    {
        **dict.fromkeys(("creationTimestamp", "id", "kind", "selfLink", "subnetworks")),
        "autoCreateSubnetworks": bool,
        "description": str,
        "mtu": int,
        "name": str,
        "routingConfig": Message({"routingMode": str, "bgpBestPathSelectionMode": str}),
    }
)
_SUBNETWORK_FIELDS = ("network", "ipCidrRange", "region")
_SMALLEST_MTU, _LARGEST_MTU = 1300, 8896


class Networks(Collection):
    """Handlers of the methods for networks and subnetworks.

    An auto-mode network has one subnetwork per region. A new cloud has the network ``default`` with
    the firewall rules of a new Google project
    (https://cloud.google.com/firewall/docs/firewalls#more_rules_default_vpc).
    """

    kind = "network"
    fields = ("description", "autoCreateSubnetworks")

    def __init__(self, frame: Frame, addresses: Callable[[], Sequence[IPv4Address]]) -> None:
        super().__init__(frame)
        self._users = NodeResources(frame.database)
        self._addresses = addresses
        with frame.database.transaction():
            if not self._table.all(NETWORKS):
                self._make_default()

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        collection = f"{PROJECT}/global/networks"
        subnets = f"{PROJECT}/regions/{{region}}/subnetworks"
        resource, subnet = f"{collection}/{{network}}", f"{subnets}/{{subnetwork}}"
        views, changing, name = ("views",), self._frame.changing, "compute.subnetworks"
        aggregated, list_all = f"{AGGREGATED}/subnetworks", self._aggregated_subnetworks
        return (
            Route("compute.networks.list", "GET", collection, self._list, SELECTION),
            Route("compute.networks.get", "GET", resource, self._get),
            changing("compute.networks.insert", "POST", collection, self._insert),
            changing("compute.networks.delete", "DELETE", resource, self._delete),
            Route(f"{name}.list", "GET", subnets, self._subnetworks, SELECTION + views),
            Route(f"{name}.aggregatedList", "GET", aggregated, list_all, AGGREGATED_QUERY + views),
            Route(f"{name}.get", "GET", subnet, self._subnetwork, views),
        )

    def _insert(self, call: Call) -> ComputeOperation:
        fields = read_resource(call.json(), _NETWORK)
        body = {key: value for key, value in fields.items() if value is not None}
        check_name(body.get("name", ""))
        if not _SMALLEST_MTU <= body.get("mtu", 1460) <= _LARGEST_MTU:
            reason = f"Must be {_SMALLEST_MTU} to {_LARGEST_MTU}"
            raise bad_value("mtu", body["mtu"], reason)
        network = self._table.add(NETWORKS, "global", body["name"], _with_defaults(body))
        return self._begin(call, "insert", network)

    def _delete(self, call: Call) -> ComputeOperation:
        """Delete a network; raise HTTP 400 if a firewall rule or a TPU uses it."""
        network = self._find(call)
        name = self._full(network.path)
        for rule in self._table.all("firewalls"):
            if rule.body["network"] == name:
                raise in_use(name, self._full(rule.path))
        if nodes := self._users.with_network(name):
            raise in_use(name, ", ".join(node.node_id for node in nodes))
        self._table.remove(network.uid)
        return self._begin(call, "delete", network)

    def _subnetworks(self, call: Call) -> Mapping[str, Any]:
        scope = self._frame.scope(call)
        items = [self._write_subnetwork(network, scope) for network in self._auto_mode_networks()]
        return self._frame.page("subnetwork", scope, items, call, _SUBNETWORK_FIELDS)

    def _aggregated_subnetworks(self, call: Call) -> Mapping[str, Any]:
        scopes = [f"regions/{region}" for region in self._frame.regions()]
        networks = self._auto_mode_networks()
        items = [self._write_subnetwork(network, scope) for scope in scopes for network in networks]
        return self._frame.aggregated("subnetwork", items, call, _SUBNETWORK_FIELDS, scopes)

    def _subnetwork(self, call: Call) -> Mapping[str, Any]:
        scope, name = self._frame.scope(call), call.names["subnetwork"]
        for network in self._auto_mode_networks():
            if network.name == name:
                return self._write_subnetwork(network, scope)
        raise missing(self._full(f"{scope}/subnetworks/{name}"))

    def _auto_mode_networks(self) -> Sequence[Resource]:
        return [
            network
            for network in self._table.all(NETWORKS)
            if network.body["autoCreateSubnetworks"]
        ]

    def _write(self, network: Resource) -> dict[str, Any]:
        is_auto_mode = network.body["autoCreateSubnetworks"]
        subnets = [
            self._frame.link(f"regions/{region}/subnetworks/{network.name}")
            for region in (self._frame.regions() if is_auto_mode else ())
        ]
        return {**super()._write(network), **({"subnetworks": subnets} if subnets else {})}

    def _write_subnetwork(self, network: Resource, scope: str) -> dict[str, Any]:
        subnet = _common_network(self._addresses())
        region = self._frame.regions().index(scope.rpartition("/")[2])
        return {
            "kind": "compute#subnetwork",
            "id": str(network.uid + region + 1),
            "creationTimestamp": network.create_time,
            "name": network.name,
            "network": self._frame.link(network.path),
            "region": self._frame.link(scope),
            "ipCidrRange": str(subnet),
            "gatewayAddress": str(subnet[1]),
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
            "privateIpGoogleAccess": False,
            "selfLink": self._frame.link(f"{scope}/subnetworks/{network.name}"),
        }

    def _make_default(self) -> None:
        """Create the network ``default`` with the firewall rules of a new Google project."""
        default = _with_defaults({"name": "default", "autoCreateSubnetworks": True})
        network = self._table.add(NETWORKS, "global", "default", default)
        internal_range = str(_common_network(self._addresses()))
        rules = {
            "internal": (internal_range, {"tcp": ["0-65535"], "udp": ["0-65535"], "icmp": []}),
            "ssh": ("0.0.0.0/0", {"tcp": ["22"]}),
            "rdp": ("0.0.0.0/0", {"tcp": ["3389"]}),
            "icmp": ("0.0.0.0/0", {"icmp": []}),
        }
        for name, (source, ports_of) in rules.items():
            rule = {
                "name": f"default-allow-{name}",
                "network": self._full(network.path),
                "priority": 65534,
                "sourceRanges": [source],
                "allowed": [{"IPProtocol": key, "ports": ports} for key, ports in ports_of.items()],
            }
            self._table.add("firewalls", "global", rule["name"], complete_rule(rule))


def _with_defaults(body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "autoCreateSubnetworks": True,
        "mtu": 1460,
        "routingConfig": {"routingMode": "REGIONAL"},
        "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        **body,
    }


def _common_network(addresses: Sequence[IPv4Address]) -> IPv4Network:
    """Return the smallest IP network that contains all addresses."""
    differing = int(min(addresses)) ^ int(max(addresses))
    return IPv4Network((int(min(addresses)), 32 - differing.bit_length()), strict=False)
