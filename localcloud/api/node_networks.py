"""VPC networks of TPU nodes: references from the Cloud TPU API to the Compute API's networks."""

import re
from collections.abc import Mapping
from typing import Any

from localcloud.api.compute_table import ResourceTable
from localcloud.api.database import Database
from localcloud.api.errors import invalid, not_found
from localcloud.api.node_table import Node, NodeTable

COLLECTION = "networks"
# Accepted references: NAME, global/networks/NAME (or regions/REGION/subnetworks/NAME), the same
# path after projects/PROJECT/, or a full Compute API URL.
_PROJECT = r"(?:https?://[^/]+/compute/[^/]+/)?projects/(?P<project>[^/]+)/"
_NETWORK = re.compile(rf"(?:(?:{_PROJECT})?global/networks/)?(?P<name>[^/]+)")
_SUBNETWORK = re.compile(
    rf"(?:(?:{_PROJECT})?regions/(?P<region>[^/]+)/subnetworks/)?(?P<name>[^/]+)"
)


class NodeNetworks:
    """Resolver of the networks in node requests.

    Call its methods inside the transaction that creates the node.
    """

    def __init__(self, database: Database) -> None:
        self._table = ResourceTable(database)
        self._nodes = NodeTable(database)

    def users(self, name: str) -> list[Node]:
        """Return the nodes in a network; ``name`` is its full resource name."""
        return [node for node in self._nodes.everything() if name in _networks(node.body)]

    def resolved(self, body: Mapping[str, Any], parent: str, zone: str) -> dict[str, Any]:
        """Return a node's body with the full names of its networks and subnetworks.

        ``parent`` is ``projects/PROJECT``. The default network is ``default``; the default
        subnetwork is the network's subnetwork in the zone's region. Raises a 404 if a network or
        subnetwork does not exist, a 400 if a subnetwork belongs to another region or network.
        """
        if "networkConfigs" not in body:
            config = self._resolve(
                body.get("networkConfig", {}), "node.networkConfig", parent, zone
            )
            return {**body, "networkConfig": config}
        if "networkConfig" in body:
            raise invalid("node.networkConfigs", "set either networkConfig or networkConfigs")
        configs = [
            self._resolve(config, f"node.networkConfigs[{index}]", parent, zone)
            for index, config in enumerate(body["networkConfigs"])
        ]
        return {**body, "networkConfigs": configs}

    def _resolve(
        self, config: Mapping[str, Any], field: str, parent: str, zone: str
    ) -> dict[str, Any]:
        region = zone.rpartition("-")[0]
        network = config.get("network") or config.get("subnetwork", "").rpartition("/")[2]
        name = _name(_NETWORK, f"{field}.network", network or "default", parent)
        subnetwork = config.get("subnetwork") or name
        path = f"{field}.subnetwork"
        of_region = _name(_SUBNETWORK, path, subnetwork, parent, region)
        if config.get("network"):
            self._check_network(name, parent)
        full = f"{parent}/regions/{region}/subnetworks/{of_region}"
        found = self._table.get(COLLECTION, "global", of_region)
        if found is None or not found.body["autoCreateSubnetworks"]:
            raise not_found(full)
        if of_region != name:
            raise invalid(path, f"{full} is not a subnetwork of the network {name}")
        return {**config, "network": f"{parent}/global/networks/{name}", "subnetwork": full}

    def _check_network(self, name: str, parent: str) -> None:
        if self._table.get(COLLECTION, "global", name) is None:
            raise not_found(f"{parent}/global/networks/{name}")


def _name(
    pattern: re.Pattern[str], field: str, reference: str, parent: str, region: str = ""
) -> str:
    """Return the name of the network or subnetwork in a reference.

    ``pattern`` is the one for the kind of resource, ``field`` the field of the request, ``parent``
    the ``projects/PROJECT`` of the local cloud. Raises a 400 if the reference is malformed or in
    another region, a 404 for another project.
    """
    found = pattern.fullmatch(reference)
    if found is None:
        raise invalid(field, f"{field} is '{reference}', not a name, a path or a URL")
    parts = found.groupdict()
    if parts["project"] and f"projects/{parts['project']}" != parent:
        raise not_found(reference)
    if parts.get("region") and parts["region"] != region:
        raise invalid(field, f"{field} is '{reference}', not in the TPU's region {region}")
    return parts["name"]


def _networks(body: Mapping[str, Any]) -> set[str]:
    configs = body.get("networkConfigs") or [body.get("networkConfig", {})]
    return {config.get("network", "") for config in configs}
