"""Which TPUs have which disks: where the Cloud TPU API and the Compute API meet."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from localcloud.api.compute_table import ResourceTable
from localcloud.api.database import Database
from localcloud.api.errors import failed_precondition, invalid, not_found
from localcloud.api.node_table import Node, NodeTable
from localcloud.machines.seam import DataDisk

COLLECTION = "disks"
_NAME = re.compile(r"(projects/[^/]+)/zones/([^/]+)/disks/([^/]+)")


class DataDisks:
    """Knows the disks that nodes have attached; call it inside the transaction that attaches."""

    def __init__(self, database: Database) -> None:
        self._table = ResourceTable(database)
        self._nodes = NodeTable(database)

    def users(self, name: str) -> list[Node]:
        """Give the nodes that have the disk of this full name."""
        return [node for node in self._nodes.everything() if name in _sources(node.body)]

    def of(self, node: Node, worker: int) -> tuple[DataDisk, ...]:
        """Return a worker's disks as its machine gets them, but for any deleted meanwhile."""
        given = []
        own = [it for it in node.body.get("dataDisks", ()) if str(worker) in _workers_of(it, node)]
        for name, mode in _sources({"dataDisks": own}).items():
            found = _NAME.fullmatch(name)
            disk = found and self._table.get(COLLECTION, f"zones/{found[2]}", found[3])
            if found and disk:
                size = int(disk.body["sizeGb"])
                given.append(DataDisk(found[2], found[3], size, read_only=mode == "READ_ONLY"))
        return tuple(given)

    def check(
        self,
        disks: Sequence[Mapping[str, Any]],
        parent: str,
        zone: str,
        workers: int,
        owner: int | None = None,
    ) -> None:
        """Raise a 400 or 404 for disks that a node of ``zone`` with so many workers cannot have.

        ``owner`` is the number of a node that is there, which may keep what it has.

        A disk is in the node's zone and ready. One that is written to is one worker's alone: a
        TPU of several workers, or several TPUs, share it READ_ONLY
        (https://cloud.google.com/tpu/docs/attach-durable-block-storage).
        """
        for index, disk in enumerate(disks):
            field, name = f"node.dataDisks[{index}]", disk.get("sourceDisk", "")
            found = _NAME.fullmatch(name)
            if found is None or found[1] != parent:
                said = f"sourceDisk is '{name}', not {parent}/zones/{zone}/disks/NAME"
                raise invalid(f"{field}.sourceDisk", said)
            if found[2] != zone:
                raise invalid(f"{field}.sourceDisk", f"{name} is not in the zone {zone}")
            self._check_ready(name, zone, found[3])
            reads = disk.get("mode") == "READ_ONLY"
            asked = disk.get("workerIds", ())
            if unknown := set(asked) - set(map(str, range(workers))):
                said = f"the TPU has {workers} workers, and none is {', '.join(sorted(unknown))}"
                raise invalid(f"{field}.workerIds", said)
            sharing = len(asked) or workers
            if sharing > 1 and not reads:
                raise invalid(
                    f"{field}.mode",
                    f"{name} can only be attached READ_ONLY: {sharing} workers would share it",
                )
            self._check_free(name, owner, reads=reads)
        names = [disk.get("sourceDisk") for disk in disks]
        if len(set(names)) < len(names):
            raise invalid("node.dataDisks", f"a disk is named twice: {', '.join(map(str, names))}")

    def _check_ready(self, name: str, zone: str, disk: str) -> None:
        found = self._table.get(COLLECTION, f"zones/{zone}", disk)
        if found is None:
            raise not_found(name)
        if not found.ready:
            raise failed_precondition(f"The resource '{name}' is not ready")

    def _check_free(self, name: str, owner: int | None, *, reads: bool) -> None:
        for node in self.users(name):
            if node.uid == owner:
                continue
            if not reads or _sources(node.body)[name] != "READ_ONLY":
                raise failed_precondition(
                    f"The disk resource '{name}' is already being used by '{node.node_id}': "
                    "several can only have it READ_ONLY"
                )


def _workers_of(disk: Mapping[str, Any], node: Node) -> Sequence[str]:
    return disk.get("workerIds") or [str(worker.index) for worker in node.workers]


def _sources(body: Mapping[str, Any]) -> dict[str, str]:
    """Give the names of a node's disks and how each is attached."""
    return {
        disk.get("sourceDisk", ""): disk.get("mode", "READ_WRITE")
        for disk in body.get("dataDisks", ())
    }
