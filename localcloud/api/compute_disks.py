"""Compute API methods for zonal ``disks``; ``Machines`` stores the disks' content.

The fields are those of the schema ``Disk`` in the discovery document of compute v1 (revision
20261106). Disk types and sizes come from https://cloud.google.com/compute/docs/disks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api.catalog import PARENT
from localcloud.api.compute_errors import ComputeError, bad_value, in_use, required
from localcloud.api.compute_firewalls import check_name
from localcloud.api.compute_frame import (
    AGGREGATED,
    AGGREGATED_QUERY,
    PROJECT,
    SELECTION,
    Collection,
    Frame,
    fingerprint,
)
from localcloud.api.compute_operation_table import ComputeOperation
from localcloud.api.compute_table import Resource
from localcloud.api.message import Labels, Message, read
from localcloud.api.node_resources import DISKS, NodeResources
from localcloud.api.routing import Call, Route, camel_case
from localcloud.machines.interface import Machines

_OUTPUT = (
    *("creationTimestamp", "id", "kind", "labelFingerprint"),
    *("selfLink", "status", "users", "zone"),
)
DISK = Message(
    {
        **dict.fromkeys(_OUTPUT),
        "accessMode": str,
        "description": str,
        "labels": Labels(),
        "name": str,
        "physicalBlockSizeBytes": str,
        "provisionedIops": str,
        "provisionedThroughput": str,
        "sizeGb": str,
        "type": str,
    }
)
_LABELS = Message({"labels": Labels(), "labelFingerprint": str})
_LONG = ("sizeGb", "physicalBlockSizeBytes", "provisionedIops", "provisionedThroughput")
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class DiskType:
    """A disk type with the default, smallest and largest size of its disks in GB."""

    name: str
    description: str
    default_gb: int
    min_gb: int
    max_gb: int


DISK_TYPES: Mapping[str, DiskType] = {
    disk_type.name: disk_type
    for disk_type in (
        DiskType("hyperdisk-balanced", "Hyperdisk Balanced", 100, 4, 65536),
        DiskType("hyperdisk-ml", "Hyperdisk ML", 100, 4, 65536),
        DiskType("pd-balanced", "Balanced Persistent Disk", 100, 10, 65536),
        DiskType("pd-ssd", "SSD Persistent Disk", 100, 10, 65536),
        DiskType("pd-standard", "Standard Persistent Disk", 500, 10, 65536),
    )
}


# access modes (https://cloud.google.com/compute/docs/disks/sharing-disks-between-vms)
SINGLE, SHARED = "READ_WRITE_SINGLE", "READ_ONLY_MANY"
ACCESS_MODES: Mapping[str, tuple[str, ...]] = {
    "hyperdisk-balanced": (SINGLE, "READ_WRITE_MANY"),
    "hyperdisk-ml": (SINGLE, SHARED),
}


def requested_disk(value: Mapping[str, Any], scope: str) -> dict[str, Any]:
    """Validate a Disk from a request; return the fields to store, including default values.

    ``scope`` is the disk's ``zones/ZONE``. The returned ``type`` is the full name of the disk type.
    Raises HTTP 404 if the disk type is unknown, or HTTP 400 that names an invalid field.
    """
    body = _canonical(value)
    check_name(body.get("name", ""))
    reference = body.get("type") or f"{scope}/diskTypes/pd-standard"
    disk_type = DISK_TYPES.get(reference.rpartition("/")[2])
    if disk_type is None or not f"/{reference}".endswith(f"/{scope}/diskTypes/{disk_type.name}"):
        known = ", ".join(DISK_TYPES)
        message = f"The resource '{reference}' was not found; {scope} has diskTypes/ {known}"
        raise ComputeError(404, "notFound", message)
    size = int(body.get("sizeGb", disk_type.default_gb))
    if not disk_type.min_gb <= size <= disk_type.max_gb:
        sizes = f"{disk_type.min_gb} GB to {disk_type.max_gb} GB"
        reason = f"Disk size for {disk_type.name} must be {sizes}."
        raise bad_value("sizeGb", size, reason)
    if "accessMode" in body:
        _check_access_mode(body["accessMode"], disk_type.name)
    return {
        "physicalBlockSizeBytes": "4096",
        **({"accessMode": SINGLE} if disk_type.name in ACCESS_MODES else {}),
        **body,
        "type": f"{PARENT}/{scope}/diskTypes/{disk_type.name}",
        "sizeGb": str(size),
    }


def _canonical(value: Mapping[str, Any]) -> dict[str, Any]:
    """Validate a Disk; convert 64-bit integers to strings and drop output-only fields."""
    named = {camel_case(key): item for key, item in value.items()}
    for key in _LONG:
        if type(named.get(key)) is int:
            named[key] = str(named[key])
    body = read(named, DISK, "resource")
    for key in _LONG:
        if key in body and not _NUMBER.fullmatch(body[key]):
            raise bad_value(key, body[key], "Must be a whole number")
    return body


def _check_access_mode(mode: str, type_name: str) -> None:
    if not type_name.startswith("hyperdisk-"):
        reason = f"{type_name} has no access mode, only Hyperdisk has one."
        raise bad_value("accessMode", mode, reason)
    if mode not in ACCESS_MODES[type_name]:
        reason = f"{type_name} can have {', '.join(ACCESS_MODES[type_name])}."
        raise bad_value("accessMode", mode, reason)


class Disks(Collection):
    """Handlers of the methods for disks."""

    kind = "disk"
    fields = ("type", "sizeGb", "status", "zone", "description", "labels")

    def __init__(self, frame: Frame, machines: Machines) -> None:
        super().__init__(frame)
        self._machines = machines
        self._nodes = NodeResources(frame.database)

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        name, changing = "compute.disks", self._frame.changing
        collection, aggregated = f"{PROJECT}/zones/{{zone}}/disks", f"{AGGREGATED}/disks"
        resource = f"{collection}/{{disk}}"
        mask = ("paths", "updateMask")
        return (
            Route(f"{name}.list", "GET", collection, self._list, SELECTION),
            Route(f"{name}.aggregatedList", "GET", aggregated, self._list_all, AGGREGATED_QUERY),
            Route(f"{name}.get", "GET", resource, self._get),
            changing(f"{name}.insert", "POST", collection, self._insert, ("sourceImage",)),
            changing(f"{name}.delete", "DELETE", resource, self._delete),
            changing(f"{name}.resize", "POST", f"{resource}/resize", self._resize),
            changing(f"{name}.update", "PATCH", resource, self._update, mask),
            changing(f"{name}.setLabels", "POST", f"{resource}/setLabels", self._set_labels),
        )

    def _list_all(self, call: Call) -> Mapping[str, Any]:
        reachable, unreachable = self._frame.reachable_scopes()
        items = [self._write(disk) for disk in self._table.all(DISKS) if disk.scope in reachable]
        return self._frame.aggregated("disk", items, call, self.fields, reachable, unreachable)

    def _insert(self, call: Call) -> ComputeOperation:
        """Create a disk, which is CREATING until the operation ends."""
        scope = self._frame.scope(call)
        body = requested_disk(call.json(), scope)
        ready_at = self._frame.operations.next_end()
        disk = self._table.add(DISKS, scope, body["name"], body, ready_at)
        return self._begin(call, "insert", disk)

    def _resize(self, call: Call) -> ComputeOperation:
        """Enlarge a disk; raise HTTP 400 if the new size is not larger than the current one."""
        body, disk = _canonical(call.json()), self._find(call)
        if "sizeGb" not in body:
            raise required("sizeGb")
        size = int(body["sizeGb"])
        if size <= int(disk.body["sizeGb"]):
            reason = f"New disk size must be larger than the {disk.body['sizeGb']} GB it has."
            raise bad_value("sizeGb", size, reason)
        self._table.change(disk.uid, {**disk.body, "sizeGb": str(size)})
        return self._begin(call, "resize", disk)

    def _update(self, call: Call) -> ComputeOperation:
        """Change the access mode of a disk.

        Raises HTTP 400 if the disk is attached to a node, or if its mode is READ_ONLY_MANY, which
        can't be changed to another mode.
        """
        body, disk = _canonical(call.json()), self._find(call)
        paths = call.query.get("updateMask") or call.query.get("paths", "")
        if set(paths.split(",")) != {"accessMode"}:
            raise bad_value("paths", paths, "Only accessMode can be changed")
        if "accessMode" not in body:
            raise required("accessMode")
        mode = body["accessMode"]
        _check_access_mode(mode, disk.body["type"].rpartition("/")[2])
        self._check_unused(disk)
        if disk.body.get("accessMode") == SHARED != mode:
            reason = f"A disk that is {SHARED} can't become writable again."
            raise bad_value("accessMode", mode, reason)
        self._table.change(disk.uid, {**disk.body, "accessMode": mode})
        return self._begin(call, "update", disk)

    def _set_labels(self, call: Call) -> ComputeOperation:
        """Replace a disk's labels; raise HTTP 412 if the fingerprint is out of date."""
        request, disk = read(call.json(), _LABELS, "resource"), self._find(call)
        if request.get("labelFingerprint") != fingerprint(disk.body.get("labels", {})):
            message = "Labels fingerprint either invalid or resource labels have changed"
            raise ComputeError(412, "conditionNotMet", message)
        body = {key: value for key, value in disk.body.items() if key != "labels"}
        if labels := request.get("labels"):
            body["labels"] = labels
        self._table.change(disk.uid, body)
        return self._begin(call, "setLabels", disk)

    def _delete(self, call: Call) -> ComputeOperation:
        """Delete a disk; raise HTTP 400 if the disk is attached to a TPU."""
        disk = self._find(call)
        self._check_unused(disk)
        self._table.remove(disk.uid)
        operation = self._begin(call, "delete", disk)
        # Delete the content in the same transaction, so that a new disk of the same name starts
        # empty. Delete it after _begin, which raises if a fault makes the operation fail.
        self._machines.forget_disk(disk.scope.removeprefix("zones/"), disk.name)
        return operation

    def _check_unused(self, disk: Resource) -> None:
        if users := self._users(disk):
            raise in_use(self._full(disk.path), ", ".join(users))

    def _users(self, disk: Resource) -> list[str]:
        """Return the full names of the nodes to which a disk is attached."""
        return [node.name for node in self._nodes.with_disk(self._full(disk.path))]

    def _write(self, disk: Resource) -> dict[str, Any]:
        links = [f"{self._frame.endpoint}/v2/{name}" for name in self._users(disk)]
        return {
            **super()._write(disk),
            "labelFingerprint": fingerprint(disk.body.get("labels", {})),
            "type": self._frame.absolute(disk.body["type"]),
            "zone": self._frame.link(disk.scope),
            "status": "READY" if disk.ready else "CREATING",
            **({"users": links} if links else {}),
        }
