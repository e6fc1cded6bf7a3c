"""Networks and disks of the Compute API that TPU nodes refer to: lookup and validation."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from localcloud.api.catalog import PARENT
from localcloud.api.compute_table import ResourceTable
from localcloud.api.database import Database
from localcloud.api.errors import failed_precondition, invalid, not_found
from localcloud.api.node_message import accelerator_of
from localcloud.api.node_table import Node, NodeTable
from localcloud.machines.interface import DataDisk

DISKS, NETWORKS = "disks", "networks"
_DISK = re.compile(r"(projects/[^/]+)/zones/([^/]+)/disks/([^/]+)")
# Accepted references: NAME, global/networks/NAME (or regions/REGION/subnetworks/NAME), the same
# path after projects/PROJECT/, or a full Compute API URL.
_PROJECT = r"(?:https?://[^/]+/compute/[^/]+/)?projects/(?P<project>[^/]+)/"
_NETWORK = re.compile(rf"(?:(?:{_PROJECT})?global/networks/)?(?P<name>[^/]+)")
_SUBNETWORK = re.compile(
    rf"(?:(?:{_PROJECT})?regions/(?P<region>[^/]+)/subnetworks/)?(?P<name>[^/]+)"
)


class NodeResources:
    """Validator and resolver of the networks and disks of nodes.

    Call ``resolved`` and ``check_disks`` inside the transaction that stores the node.
    """

    def __init__(self, database: Database) -> None:
        self._table = ResourceTable(database)
        self._nodes = NodeTable(database)

    def with_network(self, name: str) -> list[Node]:
        """Return the nodes in a network; ``name`` is its full resource name."""
        return [node for node in self._nodes.all() if name in _networks(node.body)]

    def with_disk(self, name: str) -> list[Node]:
        """Return the nodes to which a disk is attached; ``name`` is its full resource name."""
        return [node for node in self._nodes.all() if name in _sources(node.body)]

    def disks_of(self, node: Node, worker: int) -> tuple[DataDisk, ...]:
        """Return the disks to attach to worker number ``worker``; omit disks that were deleted."""
        data_disks = []
        for entry in node.body.get("dataDisks", ()):
            worker_ids = entry.get("workerIds")
            match = _DISK.fullmatch(entry.get("sourceDisk", ""))
            disk = match and self._table.get(DISKS, f"zones/{match[2]}", match[3])
            if match and disk and (not worker_ids or str(worker) in worker_ids):
                size = int(disk.body["sizeGb"])
                read_only = entry.get("mode") == "READ_ONLY"
                data_disks.append(DataDisk(match[2], match[3], size, read_only=read_only))
        return tuple(data_disks)

    def resolved(self, body: Mapping[str, Any], zone: str) -> dict[str, Any]:
        """Return a node's body with the full names of its networks and subnetworks.

        The default network is ``default``; the default subnetwork is the network's subnetwork in
        the zone's region. Raises HTTP 404 if a network or subnetwork does not exist, and HTTP 400
        if a subnetwork belongs to another region or network or if both ``networkConfig`` and
        ``networkConfigs`` are set. Also raises the errors of ``check_disks``.
        """
        if "networkConfigs" not in body:
            config = self._network(body.get("networkConfig", {}), "node.networkConfig", zone)
            complete = {**body, "networkConfig": config}
        elif "networkConfig" in body:
            raise invalid("node.networkConfigs", "set only one of networkConfig, networkConfigs")
        else:
            configs = [
                self._network(config, f"node.networkConfigs[{index}]", zone)
                for index, config in enumerate(body["networkConfigs"])
            ]
            complete = {**body, "networkConfigs": configs}
        self.check_disks(body.get("dataDisks", ()), zone, accelerator_of(body).workers)
        return complete

    def _network(self, config: Mapping[str, Any], field: str, zone: str) -> dict[str, Any]:
        region = zone.rpartition("-")[0]
        network = config.get("network") or config.get("subnetwork", "").rpartition("/")[2]
        name = self._name(_NETWORK, f"{field}.network", network or "default")
        path = f"{field}.subnetwork"
        subnetwork = self._name(_SUBNETWORK, path, config.get("subnetwork") or name, region)
        full_network = f"{PARENT}/global/networks/{name}"
        if config.get("network") and self._table.get(NETWORKS, "global", name) is None:
            raise not_found(full_network)
        full_subnetwork = f"{PARENT}/regions/{region}/subnetworks/{subnetwork}"
        parent = self._table.get(NETWORKS, "global", subnetwork)
        if parent is None or not parent.body["autoCreateSubnetworks"]:
            raise not_found(full_subnetwork)
        if subnetwork != name:
            raise invalid(path, f"{full_subnetwork} is not a subnetwork of the network {name}")
        return {**config, "network": full_network, "subnetwork": full_subnetwork}

    def _name(self, pattern: re.Pattern[str], field: str, reference: str, region: str = "") -> str:
        """Return the name in a reference to a network, or to a subnetwork of ``region``."""
        match = pattern.fullmatch(reference)
        if match is None:
            raise invalid(field, f"{field} is '{reference}', not a name, a path or a URL")
        groups = match.groupdict()
        if groups["project"] and f"projects/{groups['project']}" != PARENT:
            raise not_found(reference)
        if groups.get("region") and groups["region"] != region:
            raise invalid(field, f"{field} is '{reference}', not in the TPU's region {region}")
        return groups["name"]

    def check_disks(
        self,
        disks: Sequence[Mapping[str, Any]],
        zone: str,
        workers: int,
        owner: int | None = None,
    ) -> None:
        """Check that ``disks`` can be attached to a node with this zone and number of workers.

        Each disk must be in the zone and READY. The access mode of a Hyperdisk must allow the mode
        in which the disk is to be attached. Only one worker can attach a disk as writable; several
        workers or TPUs can share a disk only READ_ONLY
        (https://cloud.google.com/tpu/docs/attach-durable-block-storage). ``owner`` is the uid of an
        existing node; disks already attached to this node are allowed.

        Raises HTTP 404 if a disk does not exist, otherwise a 400 that explains the problem.
        """
        for index, disk in enumerate(disks):
            field, name = f"node.dataDisks[{index}]", disk.get("sourceDisk", "")
            match = _DISK.fullmatch(name)
            if match is None or match[1] != PARENT:
                message = f"sourceDisk is '{name}', not {PARENT}/zones/{zone}/disks/NAME"
                raise invalid(f"{field}.sourceDisk", message)
            if match[2] != zone:
                raise invalid(f"{field}.sourceDisk", f"{name} is not in the zone {zone}")
            read_only = disk.get("mode") == "READ_ONLY"
            self._check_ready(name, zone, match[3], read_only=read_only)
            worker_ids = disk.get("workerIds", ())
            if unknown := set(worker_ids) - set(map(str, range(workers))):
                names = ", ".join(sorted(unknown))
                message = f"unknown worker {names}: the TPU has {workers} workers"
                raise invalid(f"{field}.workerIds", message)
            user_count = len(worker_ids) or workers
            if user_count > 1 and not read_only:
                message = f"{name} must be attached READ_ONLY, as {user_count} workers share it"
                raise invalid(f"{field}.mode", message)
            self._check_free(name, owner, read_only=read_only)
        names = [disk.get("sourceDisk") for disk in disks]
        if len(set(names)) < len(names):
            raise invalid("node.dataDisks", f"a disk occurs twice: {', '.join(map(str, names))}")

    def _check_ready(self, name: str, zone: str, disk: str, *, read_only: bool) -> None:
        resource = self._table.get(DISKS, f"zones/{zone}", disk)
        if resource is None:
            raise not_found(name)
        if not resource.ready:
            raise failed_precondition(f"The resource '{name}' is not ready")
        access = resource.body.get("accessMode")
        if access and read_only != (access == "READ_ONLY_MANY"):
            mode = "READ_ONLY" if read_only else "READ_WRITE"
            raise failed_precondition(
                f"The disk resource '{name}' with access mode {access} can't be attached {mode}"
            )

    def _check_free(self, name: str, owner: int | None, *, read_only: bool) -> None:
        for node in self.with_disk(name):
            if node.uid == owner:
                continue
            if not read_only or _sources(node.body)[name] != "READ_ONLY":
                raise failed_precondition(
                    f"The disk resource '{name}' is already being used by '{node.node_id}': "
                    "several TPUs can share it only READ_ONLY"
                )


def _networks(body: Mapping[str, Any]) -> set[str]:
    configs = body.get("networkConfigs") or [body.get("networkConfig", {})]
    return {config.get("network", "") for config in configs}


def _sources(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the attachment mode of each data disk in a node's body, by the disk's full name."""
    return {
        disk.get("sourceDisk", ""): disk.get("mode", "READ_WRITE")
        for disk in body.get("dataDisks", ())
    }
