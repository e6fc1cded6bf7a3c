"""Data disks of TPUs: created where the fleet asks for them, deleted only on explicit request.

Disk types by generation: https://cloud.google.com/tpu/docs/attach-durable-block-storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from . import errors
from .compute import ComputeApi
from .deletion import Found, delete_exactly
from .node_spec import NodeSpec
from .nodes import Disk, Node
from .shapes import generation_of

#: Disks whose description begins so are the collection's; no other is ever deleted.
MARK = "Made by tpufleet"
_PERSISTENT = frozenset({"v2", "v3", "v4", "v5e", "v5p"})
Progress = Callable[[str], None]


def disk_type_for(accelerator_type: str) -> str:
    """Return the disk type of a generation: Hyperdisk for v6e and later."""
    older = generation_of(accelerator_type) in _PERSISTENT
    return "pd-balanced" if older else "hyperdisk-balanced"


def ensure_disks(
    compute: ComputeApi,
    spec: NodeSpec,
    *,
    deadline: float,
    progress: Progress = lambda _text: None,
) -> None:
    """Create the TPU's missing disks that have ``size_gb``. Raises CloudError.

    Raises Different for a disk that is too small. ``deadline`` as for ComputeApi.wait.
    """
    for disk in spec.disks_to_create:
        _ensure_disk(compute, spec, disk, deadline, progress)


def _ensure_disk(
    compute: ComputeApi, spec: NodeSpec, disk: Disk, deadline: float, progress: Progress
) -> None:
    what = f"create the disk {disk.name} ({spec.zone})"
    if compute.get_disk(spec.zone, disk.name) is None:
        kind = disk.type or disk_type_for(spec.kind)
        zone_path = f"projects/{compute.settings.project}/zones/{spec.zone}"
        body = {
            "name": disk.name,
            "sizeGb": str(disk.size_gb),
            "type": f"{zone_path}/diskTypes/{kind}",
            "description": f"{MARK} for its TPUs",
        }
        progress(f"creating the disk {disk.name}")
        # Another TPU of the fleet that shares it may have created it meanwhile.
        with suppress(errors.AlreadyExists):
            compute.wait(compute.insert_disk(spec.zone, body), what, deadline)
    found = _wait_ready(compute, spec.zone, disk.name, what, deadline)
    size = int(found.get("sizeGb") or 0)
    if size < disk.size_gb:
        raise errors.Different(
            f"the disk {disk.name} ({spec.zone}) has {size} GB, expected {disk.size_gb}. Resize "
            f"it: gcloud compute disks resize {disk.name} --zone={spec.zone} "
            f"--size={disk.size_gb}GB"
        )


def _wait_ready(
    compute: ComputeApi, zone: str, name: str, what: str, deadline: float
) -> Mapping[str, Any]:
    tried = 0
    while True:
        found = compute.get_disk(zone, name)
        status = str(found.get("status") or "READY") if found else "gone"
        if found and status == "READY":
            return found
        if status not in ("CREATING", "RESTORING"):
            raise errors.OperationFailed(f"can't {what}: it is {status}")
        compute.polling.pause(what, tried, deadline)
        tried += 1


def missing_disks(compute: ComputeApi, specs: Iterable[NodeSpec]) -> list[dict[str, Any]]:
    """List the disks of these TPUs that ``create`` would create, each once."""
    disks = {
        (spec.zone, disk.name): (disk, spec.kind) for spec in specs for disk in spec.disks_to_create
    }
    return [
        {
            "name": name,
            "zone": zone,
            "size_gb": disk.size_gb,
            "type": (kind := disk.type or disk_type_for(accelerator_type)),
            "words": f"the disk {name} ({zone}, {disk.size_gb} GB, {kind})",
        }
        for (zone, name), (disk, accelerator_type) in sorted(disks.items(), key=lambda it: it[0])
        if compute.get_disk(zone, name) is None
    ]


@dataclass(frozen=True)
class OwnedDisk:
    """An existing disk that the collection created."""

    zone: str
    name: str
    size_gb: int
    id: str

    @property
    def key(self) -> str:
        """What neither a later disk of its name nor a TPU has."""
        return f"disk {self.zone}.{self.name}@{self.id}"

    def described(self) -> dict[str, Any]:
        """Return what the question before its deletion shows."""
        words = f"the disk {self.name} ({self.zone}, {self.size_gb} GB) and all its data"
        return {"name": self.name, "zone": self.zone, "id": self.key, "words": words}


def owned_disks(
    compute: ComputeApi, nodes: Iterable[Node], specs: Iterable[NodeSpec]
) -> list[OwnedDisk]:
    """List the existing disks of these TPUs, existing or desired, that the collection created."""
    places = {(node.zone, disk.name) for node in nodes for disk in node.data_disks}
    places |= {(spec.zone, disk.name) for spec in specs for disk in spec.disks_to_create}
    found = []
    for zone, name in sorted(places):
        disk = compute.get_disk(zone, name)
        if disk is not None and str(disk.get("description") or "").startswith(MARK):
            found.append(_owned(zone, name, disk))
    return found


def ensure_disk_absent(
    compute: ComputeApi, disk: OwnedDisk, *, timeout: float, check: bool = False
) -> str:
    """Delete this very disk; return a line for people. Raises CloudError, e.g. if it is in use."""
    found = compute.get_disk(disk.zone, disk.name)
    if found is None:
        return f"the disk {disk.name} ({disk.zone}) does not exist"
    if _owned(disk.zone, disk.name, found).key != disk.key:
        raise errors.Different(
            f"the disk {disk.name} ({disk.zone}) was recreated after you were asked whether to "
            "delete it, so it stays. To delete it, too, run this again"
        )
    if not check:
        _delete(compute, disk, compute.polling.deadline_in(timeout))
    return f"the disk {disk.name} ({disk.zone}) {'would be' if check else 'is'} deleted"


def _delete(compute: ComputeApi, disk: OwnedDisk, deadline: float) -> None:
    what = f"delete the disk {disk.name} ({disk.zone})"

    def look() -> Found | None:
        found = compute.get_disk(disk.zone, disk.name)
        if found is None:
            return None
        return Found(str(found.get("id") or ""), is_being_deleted=found.get("status") == "DELETING")

    delete_exactly(
        what,
        disk.id,
        look=look,
        delete=lambda: compute.delete_disk(disk.zone, disk.name),
        wait=lambda operation: compute.wait(operation, what, deadline),
        pause=lambda tried: compute.polling.pause(what, tried, deadline),
    )


def _owned(zone: str, name: str, data: Mapping[str, Any]) -> OwnedDisk:
    return OwnedDisk(zone, name, int(data.get("sizeGb") or 0), str(data.get("id") or ""))
