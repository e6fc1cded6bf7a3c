"""Data disks of TPUs: created if the fleet file sets their size, deleted only on request.

Disk types by TPU generation: https://cloud.google.com/tpu/docs/attach-durable-block-storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import errors
from .changes import ChangeOptions, Outcome, Progress
from .deletion import CurrentResource, check_confirmed, delete_exactly
from .fields import Fields
from .fleet_name import LABEL
from .names import Disk, ZonalResource
from .shapes import generation_of

if TYPE_CHECKING:
    from .compute import ComputeApi
    from .node_spec import NodeSpec
    from .nodes import Node

#: Prefix of the description of disks that the collection created. No other disk is ever deleted.
DESCRIPTION_PREFIX = "Made by tpufleet"
_PERSISTENT = frozenset({"v2", "v3", "v4", "v5e", "v5p"})
#: Access mode of a Hyperdisk that can be attached read-only to several machines.
READ_ONLY_MANY = "READ_ONLY_MANY"


def disk_type_for(accelerator_type: str, *, writable: bool) -> str:
    """Return the disk type for new disks: a Hyperdisk for TPUs of generation v6e and later.

    Of the Hyperdisk types, only Hyperdisk ML can be shared read-only. A ``writable`` disk is not
    shared, so it is a Hyperdisk Balanced.
    """
    if generation_of(accelerator_type) in _PERSISTENT:
        return "pd-balanced"
    return "hyperdisk-balanced" if writable else "hyperdisk-ml"


@dataclass(frozen=True)
class StoredDisk(ZonalResource):
    """An existing disk as Compute Engine reports it; only a Hyperdisk has an ``access_mode``."""

    zone: str
    name: str
    id: str
    size_gb: int
    status: str
    description: str
    access_mode: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Unique key, which no TPU and no later disk of the same name has."""
        return f"disk {self.zone}.{self.name}@{self.id}"

    def described(self) -> dict[str, Any]:
        """Return what the confirmation prompt for a deletion shows about the disk."""
        description = f"the disk {self.name} ({self.zone}, {self.size_gb} GB) and all its data"
        return {"name": self.name, "zone": self.zone, "id": self.key, "description": description}


def read_disk(compute: ComputeApi, zone: str, name: str) -> StoredDisk | None:
    """Return a disk, None if it does not exist. Raises CloudError."""
    data = compute.get_disk(zone, name)
    if data is None:
        return None
    fields = Fields(data, f"disk {name} ({zone})")
    return StoredDisk(
        zone,
        name,
        fields.id(),
        fields.number("sizeGb"),
        fields.identifier("status") or "UNKNOWN",
        fields.text("description"),
        fields.identifier("accessMode"),
        fields.text_map("labels"),
    )


def ensure_disks(
    compute: ComputeApi,
    spec: NodeSpec,
    *,
    deadline: float,
    progress: Progress = lambda _text: None,
) -> None:
    """Create the TPU's missing disks that have a ``size_gb``, and wait until they are READY.

    A new disk gets the labels of its TPU, among them the one that names the fleet.
    ``deadline`` is when to stop waiting, as a ``polling.clock`` time. Raises CloudError; its
    subclass Different if a disk is smaller than its ``size_gb``, or if the TPU would write to a
    disk that another fleet created.
    """
    for disk in spec.disks_to_create:
        action = f"create the disk {disk.name} ({spec.zone})"
        if read_disk(compute, spec.zone, disk.name) is None:
            kind = disk.type or disk_type_for(spec.kind, writable=disk.writable)
            zone_path = f"projects/{compute.settings.project}/zones/{spec.zone}"
            body = {
                "name": disk.name,
                "sizeGb": str(disk.size_gb),
                "type": f"{zone_path}/diskTypes/{kind}",
                "description": f"{DESCRIPTION_PREFIX} for its TPUs",
                "labels": dict(spec.labels or {}),
            }
            progress(f"creating the disk {disk.name}")
            # TPUs are created in parallel, so a shared disk may exist by now.
            with suppress(errors.AlreadyExists):
                compute.insert_disk(spec.zone, body, deadline)
        stored = _wait_ready(compute, spec.zone, disk.name, action, deadline)
        if disk.writable and (fleet_name := (spec.labels or {}).get(LABEL)):
            check_may_write(stored, fleet_name)
        if stored.size_gb < disk.size_gb:
            raise errors.Different(
                f"the disk {stored.where} has {stored.size_gb} GB, expected {disk.size_gb}. Resize "
                f"it: gcloud compute disks resize {disk.name} --zone={spec.zone} "
                f"--size={disk.size_gb}GB --project={compute.settings.project}"
            )


def check_may_write(disk: StoredDisk, fleet_name: str) -> None:
    """Raise Different if another fleet than ``fleet_name`` created the disk."""
    owner = disk.labels.get(LABEL, fleet_name)
    if owner != fleet_name:
        raise errors.Different(
            f"the disk {disk.where} belongs to the fleet {owner!r:.80}, so {fleet_name} must not "
            "write to it. Choose another name in data_disks: "
            "$EDITOR inventory/*/group_vars/all/fleet.yml"
        )


def _wait_ready(
    compute: ComputeApi, zone: str, name: str, action: str, deadline: float
) -> StoredDisk:
    pauses = 0
    while True:
        stored = read_disk(compute, zone, name)
        if stored and stored.status == "READY":
            return stored
        status = stored.status if stored else "gone"
        if status not in ("CREATING", "RESTORING"):
            raise errors.OperationFailed(
                f"can't {action}: the disk is {status}. Check it: gcloud compute disks list "
                f"--filter=name={name} --project={compute.settings.project}; then run the playbook "
                "again"
            )
        compute.polling.pause(action, pauses, deadline)
        pauses += 1


def attachable(compute: ComputeApi, spec: NodeSpec, node: Node | None = None) -> NodeSpec:
    """Return the spec without new Hyperdisks, which cannot be attached read-only until filled.

    ``playbooks/fill_disk.yml`` fills and shares such a disk, and attaches it to the TPUs. Disks
    that are attached to the existing TPU ``node`` stay in the spec. Raises CloudError.
    """
    if not spec.data_disks:
        return spec
    attached = [disk.name for disk in node.data_disks] if node else []
    waiting = {
        disk
        for disk in spec.data_disks
        if not disk.writable
        and "/" not in disk.source
        and disk.name not in attached
        and (stored := read_disk(compute, spec.zone, disk.name))
        and stored.access_mode not in ("", READ_ONLY_MANY)
    }
    return replace(spec, data_disks=tuple(disk for disk in spec.data_disks if disk not in waiting))


def missing_disks(compute: ComputeApi, specs: Iterable[NodeSpec]) -> list[dict[str, Any]]:
    """List the missing disks that playbooks/create.yml would create, without duplicates."""
    disks = {
        (spec.zone, disk.name): (disk, spec.kind) for spec in specs for disk in spec.disks_to_create
    }
    return [
        {
            "name": name,
            "zone": zone,
            "size_gb": disk.size_gb,
            "type": (kind := disk.type or disk_type_for(kind_of_tpu, writable=disk.writable)),
            "description": f"the disk {name} ({zone}, {disk.size_gb} GB, {kind})",
        }
        for (zone, name), (disk, kind_of_tpu) in sorted(disks.items(), key=lambda item: item[0])
        if read_disk(compute, zone, name) is None
    ]


def owned_disks(
    compute: ComputeApi,
    nodes: Iterable[Node],
    specs: Iterable[NodeSpec],
    others: Iterable[NodeSpec] = (),
    *,
    fleet_name: str,
) -> list[StoredDisk]:
    """List the disks that this collection created for the given TPUs of the fleet ``fleet_name``.

    ``nodes`` are the existing TPUs, and ``specs`` are the specs of the desired TPUs. ``others`` are
    the specs of TPUs whose disks are left out.
    """
    project = compute.settings.project
    names = {
        (node.zone, disk.name)
        for node in nodes
        for disk in node.data_disks
        # Skip disks of other projects, because this project may have another disk of the same name.
        # The source of a disk is a path or a URL, in which the project is an id or a number, so
        # compare the path with both.
        if "projects/" + disk.source.rpartition("projects/")[2]
        in {
            Disk(disk.name).path(project_name, node.zone)
            for project_name in (project, node.project)
        }
    }
    names |= {(spec.zone, disk.name) for spec in specs for disk in spec.disks_to_create}
    names -= {(spec.zone, disk.name) for spec in others for disk in spec.data_disks or ()}
    stored_disks = [read_disk(compute, zone, name) for zone, name in sorted(names)]
    return [
        disk
        for disk in stored_disks
        if disk
        and disk.description.startswith(DESCRIPTION_PREFIX)
        and disk.labels.get(LABEL) == fleet_name
    ]


def ensure_disk_absent(compute: ComputeApi, disk: StoredDisk, options: ChangeOptions) -> Outcome:
    """Delete this disk, but no later disk of the same name.

    Raises CloudError, for example if the disk is in use; Different if it is not confirmed or was
    recreated.
    """
    current = read_disk(compute, disk.zone, disk.name)
    if current is None:
        return Outcome(False, f"the disk {disk.where} does not exist", {}, {})
    confirmed = {disk.key} if options.confirmed is None else options.confirmed
    check_confirmed(f"the disk {disk.where}", current.key, confirmed)
    if options.check:
        return Outcome(True, f"the disk {disk.where} would be deleted", disk.described(), {})

    def read() -> CurrentResource | None:
        current = read_disk(compute, disk.zone, disk.name)
        return current and CurrentResource(current.id, current.status, current.status == "DELETING")

    delete_exactly(
        compute,
        f"delete the disk {disk.where}",
        disk.id,
        compute.polling.deadline_in(options.timeout),
        read=read,
        delete=lambda: compute.delete_disk(disk.zone, disk.name),
    )
    return Outcome(True, f"the disk {disk.where} is deleted", disk.described(), {})
