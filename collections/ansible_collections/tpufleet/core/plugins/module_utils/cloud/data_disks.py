"""The data disks of TPUs: made where the fleet asks for it, and gone only where a person says so.

Which type a generation takes: https://cloud.google.com/tpu/docs/attach-durable-block-storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from . import tpu_errors as errors
from .compute_api import ComputeApi
from .deletion import Found, delete_exactly
from .tpu_api import TpuApi
from .tpu_nodes import Disk, Node
from .tpu_shapes import generation_of
from .tpu_wanted import Different, Wanted

#: A disk whose description begins so is ours; no other is ever deleted.
MARK = "Made by tpufleet"
_PERSISTENT = frozenset({"v2", "v3", "v4", "v5e", "v5p"})


def disk_type_for(accelerator_type: str) -> str:
    """Give the disk type that a generation takes; v6e and what comes after it take Hyperdisk."""
    older = generation_of(accelerator_type) in _PERSISTENT
    return "pd-balanced" if older else "hyperdisk-balanced"


def have_disks(
    api: TpuApi,
    wanted: Wanted,
    *,
    deadline: float,
    progress: Callable[[str], None] = lambda _text: None,
) -> None:
    """Have the TPU's disks that are to be made (``size_gb``); the others are there, or it fails.

    ``deadline`` as for TpuApi.wait. Raises TpuApiError; Different for a disk that is too small.
    """
    asked = [disk for disk in wanted.data_disks or () if disk.size_gb]
    if not asked:
        return
    compute = ComputeApi(api)
    for disk in asked:
        _have(compute, api, wanted, disk, deadline, progress)


def _have(
    compute: ComputeApi,
    api: TpuApi,
    wanted: Wanted,
    disk: Disk,
    deadline: float,
    progress: Callable[[str], None],
) -> None:
    what = f"make the disk {disk.name} ({wanted.zone})"
    there = compute.get_disk(wanted.zone, disk.name)
    if there is None:
        kind = disk.type or disk_type_for(wanted.kind)
        place = f"projects/{api.settings.project}/zones/{wanted.zone}"
        body = {
            "name": disk.name,
            "sizeGb": str(disk.size_gb),
            "type": f"{place}/diskTypes/{kind}",
            "description": f"{MARK} for its TPUs",
        }
        progress(f"making the disk {disk.name}")
        # Another TPU of the fleet may share it, and be quicker.
        with suppress(errors.AlreadyExists):
            compute.wait(compute.insert_disk(wanted.zone, body), what, deadline)
    tried = 0
    while True:
        there = compute.get_disk(wanted.zone, disk.name)
        status = str(there.get("status") or "READY") if there else "gone"
        if there and status == "READY":
            break
        if status not in ("CREATING", "RESTORING"):
            raise errors.OperationFailed(f"can't {what}: it is {status}")
        api.pause(what, tried, deadline)
        tried += 1
    size = int(there.get("sizeGb") or 0)
    if size < disk.size_gb:
        raise Different(
            f"the disk {disk.name} ({wanted.zone}) has {size} GB, wanted {disk.size_gb}: make it "
            f"larger with `gcloud compute disks resize {disk.name} --zone={wanted.zone} "
            f"--size={disk.size_gb}GB`"
        )


def disks_to_make(api: TpuApi, choices: Iterable[Wanted]) -> list[dict[str, Any]]:
    """Give the disks of these TPUs that create.yml would make: ``words``, ``size_gb``, ``type``.

    Of those that several TPUs share, one; asks for each whether it is there.
    """
    asked = {
        (choice.zone, disk.name): (disk, choice.kind)
        for choice in choices
        for disk in choice.data_disks or ()
        if disk.size_gb
    }
    compute = ComputeApi(api) if asked else None
    return [
        {
            "name": name,
            "zone": zone,
            "size_gb": disk.size_gb,
            "type": (made_as := disk.type or disk_type_for(kind)),
            "words": f"the disk {name} ({zone}, {disk.size_gb} GB, {made_as})",
        }
        for (zone, name), (disk, kind) in sorted(asked.items(), key=lambda item: item[0])
        if compute and compute.get_disk(zone, name) is None
    ]


@dataclass(frozen=True)
class MadeDisk:
    """A disk that this project made and that is there."""

    zone: str
    name: str
    size_gb: int
    id: str

    @property
    def key(self) -> str:
        """Tell it from a later one of its name, and from a TPU."""
        return f"disk {self.zone}.{self.name}@{self.id}"

    def described(self) -> dict[str, Any]:
        """Give what a person wants to know of it before deleting it."""
        words = f"the disk {self.name} ({self.zone}, {self.size_gb} GB) with all that is on it"
        return {"name": self.name, "zone": self.zone, "id": self.key, "words": words}


def made_disks(api: TpuApi, nodes: Iterable[Node], wanted: Iterable[Wanted]) -> list[MadeDisk]:
    """Return the disks of these TPUs, existing or only wanted, that this project created."""
    places = {(node.zone, disk.name) for node in nodes for disk in node.data_disks}
    places |= {
        (choice.zone, disk.name)
        for choice in wanted
        for disk in choice.data_disks or ()
        if disk.size_gb
    }
    compute = ComputeApi(api) if places else None
    found = []
    for zone, name in sorted(places):
        disk = compute.get_disk(zone, name) if compute else None
        if disk is not None and str(disk.get("description") or "").startswith(MARK):
            found.append(_made(zone, name, disk))
    return found


def ensure_no_disk(api: TpuApi, disk: MadeDisk, *, timeout: float, check: bool) -> str:
    """Have a disk gone; the very one. Gives a line. Raises TpuApiError, such as for one in use."""
    compute = ComputeApi(api)
    there = compute.get_disk(disk.zone, disk.name)
    if there is None:
        return f"the disk {disk.name} ({disk.zone}) is not there"
    if _made(disk.zone, disk.name, there).key != disk.key:
        raise Different(
            f"the disk {disk.name} ({disk.zone}) was made after the question whether to delete it: "
            "it stays; run this again if it is meant too"
        )
    if not check:
        _delete(compute, api, disk, api.deadline_in(timeout))
    return f"the disk {disk.name} ({disk.zone}) {'would be' if check else 'is'} deleted"


def _delete(compute: ComputeApi, api: TpuApi, disk: MadeDisk, deadline: float) -> None:
    what = f"delete the disk {disk.name} ({disk.zone})"

    def look() -> Found | None:
        there = compute.get_disk(disk.zone, disk.name)
        if there is None:
            return None
        return Found(str(there.get("id") or ""), is_being_deleted=there.get("status") == "DELETING")

    delete_exactly(
        what,
        disk.id,
        look=look,
        delete=lambda: compute.delete_disk(disk.zone, disk.name),
        wait=lambda operation: compute.wait(operation, what, deadline),
        pause=lambda tried: api.pause(what, tried, deadline),
    )


def _made(zone: str, name: str, data: Mapping[str, Any]) -> MadeDisk:
    return MadeDisk(zone, name, int(data.get("sizeGb") or 0), str(data.get("id") or ""))
