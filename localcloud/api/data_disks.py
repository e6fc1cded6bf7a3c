"""Data disks of TPU nodes: references from the Cloud TPU API to the Compute API's disks."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from localcloud.api.compute_table import ResourceTable
from localcloud.api.database import Database
from localcloud.api.errors import failed_precondition, invalid, not_found
from localcloud.api.node_table import Node, NodeTable
from localcloud.machines.interface import DataDisk

COLLECTION = "disks"
_NAME = re.compile(r"(projects/[^/]+)/zones/([^/]+)/disks/([^/]+)")


class DataDisks:
    """Validator and resolver of the disks attached to nodes.

    Call ``check`` inside the transaction that attaches the disks.
    """

    def __init__(self, database: Database) -> None:
        self._table = ResourceTable(database)
        self._nodes = NodeTable(database)

    def users(self, name: str) -> list[Node]:
        """Return the nodes to which a disk is attached; ``name`` is its full resource name."""
        return [node for node in self._nodes.everything() if name in _sources(node.body)]

    def of(self, node: Node, worker: int) -> tuple[DataDisk, ...]:
        """Return the disks to attach to the machine of a worker (an index); skip deleted disks."""
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
        """Check that ``disks`` can be attached to a node with this zone and number of workers.

        ``parent`` is ``projects/PROJECT``. Each disk must be in the zone and READY. The access mode
        of a Hyperdisk must allow the mode in which the disk is to be attached. Only one worker can
        attach a disk as writable; several workers or TPUs can share a disk only READ_ONLY
        (https://cloud.google.com/tpu/docs/attach-durable-block-storage). ``owner`` is the uid of an
        existing node; disks already attached to this node are allowed.

        Raises a 404 if a disk does not exist, otherwise a 400 that explains the problem.
        """
        for index, disk in enumerate(disks):
            field, name = f"node.dataDisks[{index}]", disk.get("sourceDisk", "")
            found = _NAME.fullmatch(name)
            if found is None or found[1] != parent:
                message = f"sourceDisk is '{name}', not {parent}/zones/{zone}/disks/NAME"
                raise invalid(f"{field}.sourceDisk", message)
            if found[2] != zone:
                raise invalid(f"{field}.sourceDisk", f"{name} is not in the zone {zone}")
            reads = disk.get("mode") == "READ_ONLY"
            self._check_ready(name, zone, found[3], reads=reads)
            asked = disk.get("workerIds", ())
            if unknown := set(asked) - set(map(str, range(workers))):
                message = (
                    f"unknown worker {', '.join(sorted(unknown))}: the TPU has {workers} workers"
                )
                raise invalid(f"{field}.workerIds", message)
            sharing = len(asked) or workers
            if sharing > 1 and not reads:
                raise invalid(
                    f"{field}.mode",
                    f"{name} must be attached READ_ONLY, as {sharing} workers share it",
                )
            self._check_free(name, owner, reads=reads)
        names = [disk.get("sourceDisk") for disk in disks]
        if len(set(names)) < len(names):
            raise invalid("node.dataDisks", f"a disk occurs twice: {', '.join(map(str, names))}")

    def _check_ready(self, name: str, zone: str, disk: str, *, reads: bool) -> None:
        found = self._table.get(COLLECTION, f"zones/{zone}", disk)
        if found is None:
            raise not_found(name)
        if not found.ready:
            raise failed_precondition(f"The resource '{name}' is not ready")
        access = found.body.get("accessMode")
        if access and reads != (access == "READ_ONLY_MANY"):
            mode = "READ_ONLY" if reads else "READ_WRITE"
            raise failed_precondition(
                f"The disk resource '{name}' with access mode {access} can't be attached {mode}"
            )

    def _check_free(self, name: str, owner: int | None, *, reads: bool) -> None:
        for node in self.users(name):
            if node.uid == owner:
                continue
            if not reads or _sources(node.body)[name] != "READ_ONLY":
                raise failed_precondition(
                    f"The disk resource '{name}' is already being used by '{node.node_id}': "
                    "several TPUs can share it only READ_ONLY"
                )


def _workers_of(disk: Mapping[str, Any], node: Node) -> Sequence[str]:
    return disk.get("workerIds") or [str(worker.index) for worker in node.workers]


def _sources(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the mode of each disk in a node's body, by the disk's full name."""
    return {
        disk.get("sourceDisk", ""): disk.get("mode", "READ_WRITE")
        for disk in body.get("dataDisks", ())
    }
