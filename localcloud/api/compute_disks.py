"""Compute API methods for zonal ``disks``; ``Machines`` stores the disks' content.

The fields are those of the schema ``Disk`` in the discovery document of compute v1 (revision
20261106). Disk types and sizes come from https://cloud.google.com/compute/docs/disks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api.compute_errors import ComputeError, bad_value, in_use, missing, required
from localcloud.api.compute_firewalls import check_name
from localcloud.api.compute_frame import (
    AGGREGATED,
    EVERYWHERE,
    PROJECT,
    SELECTION,
    Frame,
    fingerprint,
)
from localcloud.api.compute_table import Resource, ResourceTable
from localcloud.api.data_disks import COLLECTION, DataDisks
from localcloud.api.message import Labels, Message, read
from localcloud.api.node_table import Node
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
    default: int
    least: int
    most: int


DISK_TYPES: Mapping[str, DiskType] = {
    it.name: it
    for it in (
        DiskType("hyperdisk-balanced", "Hyperdisk Balanced", 100, 4, 65536),
        DiskType("hyperdisk-ml", "Hyperdisk ML", 100, 4, 65536),
        DiskType("pd-balanced", "Balanced Persistent Disk", 100, 10, 65536),
        DiskType("pd-ssd", "SSD Persistent Disk", 100, 10, 65536),
        DiskType("pd-standard", "Standard Persistent Disk", 500, 10, 65536),
    )
}


# https://cloud.google.com/compute/docs/disks/sharing-disks-between-vms
SINGLE, SHARED = "READ_WRITE_SINGLE", "READ_ONLY_MANY"
ACCESS_MODES: Mapping[str, tuple[str, ...]] = {
    "hyperdisk-balanced": (SINGLE, "READ_WRITE_MANY"),
    "hyperdisk-ml": (SINGLE, SHARED),
}


def requested_disk(value: Mapping[str, Any], parent: str, scope: str) -> dict[str, Any]:
    """Validate a Disk from a request and return it as stored, with the full name of its type.

    ``parent`` is ``projects/PROJECT``, ``scope`` is the disk's ``zones/ZONE``. Raises a 400 that
    names the invalid field, or a 404 if the disk type is unknown.
    """
    body = _canonical(value)
    check_name(body.get("name", ""))
    reference = body.get("type") or f"{scope}/diskTypes/pd-standard"
    kind = DISK_TYPES.get(reference.rpartition("/")[2])
    if kind is None or not f"/{reference}".endswith(f"/{scope}/diskTypes/{kind.name}"):
        known = ", ".join(DISK_TYPES)
        message = f"The resource '{reference}' was not found; {scope} has diskTypes/ {known}"
        raise ComputeError(404, "notFound", message)
    size = int(body.get("sizeGb", kind.default))
    if not kind.least <= size <= kind.most:
        why = f"Disk size for {kind.name} must be {kind.least} GB to {kind.most} GB."
        raise bad_value("sizeGb", size, why)
    if "accessMode" in body:
        _check_access_mode(body["accessMode"], kind.name)
    return {
        "physicalBlockSizeBytes": "4096",
        **({"accessMode": SINGLE} if kind.name in ACCESS_MODES else {}),
        **body,
        "type": f"{parent}/{scope}/diskTypes/{kind.name}",
        "sizeGb": str(size),
    }


@dataclass(frozen=True)
class LabelsRequest:
    """Request to replace a disk's labels; ``fingerprint`` is that of the labels to replace."""

    labels: Mapping[str, str]
    fingerprint: str


def requested_labels(value: Mapping[str, Any]) -> LabelsRequest:
    """Parse a request to replace a disk's labels; raise a 400 if it is invalid."""
    fields = read(value, _LABELS, "resource")
    return LabelsRequest(fields.get("labels", {}), fields.get("labelFingerprint", ""))


def requested_size(value: Mapping[str, Any]) -> int:
    """Return the new size in GB from a resize request; raise a 400 if it is invalid."""
    body = _canonical(value)
    if "sizeGb" not in body:
        raise required("sizeGb")
    return int(body["sizeGb"])


def _canonical(value: Mapping[str, Any]) -> dict[str, Any]:
    """Validate a Disk; convert 64-bit integers to strings and drop output-only fields."""
    named = {camel_case(key): it for key, it in value.items()}
    for key in _LONG:
        if type(named.get(key)) is int:
            named[key] = str(named[key])
    body = read(named, DISK, "resource")
    for key in _LONG:
        if key in body and not _NUMBER.fullmatch(body[key]):
            raise bad_value(key, body[key], "Must be a whole number")
    return body


def requested_access_mode(value: Mapping[str, Any], paths: str) -> str:
    """Return the new access mode from an update request; raise a 400 if it is invalid.

    ``paths`` is the request's list of the fields to change, which can only be the access mode.
    """
    body = _canonical(value)
    if set(paths.split(",")) != {"accessMode"}:
        raise bad_value("paths", paths, "Only accessMode can be changed")
    if "accessMode" not in body:
        raise required("accessMode")
    return str(body["accessMode"])


def _check_access_mode(mode: str, kind: str) -> None:
    if not kind.startswith("hyperdisk-"):
        raise bad_value("accessMode", mode, f"{kind} has no access mode, only Hyperdisk has one.")
    if mode not in ACCESS_MODES[kind]:
        why = f"{kind} can have {', '.join(ACCESS_MODES[kind])}."
        raise bad_value("accessMode", mode, why)


FIELDS = ("type", "sizeGb", "status", "zone", "description", "labels")


class Disks:
    """Handlers of the methods for disks."""

    def __init__(self, frame: Frame, endpoint: str, machines: Machines) -> None:
        self._frame = frame
        self._machines = machines
        self._table = ResourceTable(frame.database)
        self._attached = DataDisks(frame.database)
        self._endpoint = endpoint

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        every, ids = f"{PROJECT}/zones/{{zone}}/disks", ("requestId",)
        one, everywhere = f"{every}/{{disk}}", f"{AGGREGATED}/disks"
        return (
            Route("compute.disks.list", "GET", every, self.list, SELECTION),
            Route(
                "compute.disks.aggregatedList", "GET", everywhere, self.list_everywhere, EVERYWHERE
            ),
            Route("compute.disks.insert", "POST", every, self.insert, (*ids, "sourceImage")),
            Route("compute.disks.get", "GET", one, self.get),
            Route("compute.disks.delete", "DELETE", one, self.delete, ids),
            Route("compute.disks.resize", "POST", f"{one}/resize", self.resize, ids),
            Route("compute.disks.update", "PATCH", one, self.update, (*ids, "paths", "updateMask")),
            Route("compute.disks.setLabels", "POST", f"{one}/setLabels", self.set_labels, ids),
        )

    def list(self, call: Call) -> Mapping[str, Any]:
        """Return a page of a zone's disks."""
        scope = self._frame.zone(call)
        items = [self._write(it) for it in self._table.all(COLLECTION, scope)]
        return self._frame.page("diskList", f"{scope}/disks", items, call, FIELDS)

    def list_everywhere(self, call: Call) -> Mapping[str, Any]:
        """Return a page of all zones' disks, grouped by zone, and the unreachable zones."""
        scope = self._frame.project.many({"zone": "-"})
        reached = [f"zones/{zone}" for zone in scope.zones]
        found = [it for it in self._table.all(COLLECTION) if it.scope in reached]
        return self._frame.aggregated(
            "diskAggregatedList",
            "disks",
            [self._write(it) for it in found],
            call,
            FIELDS,
            scopes=reached,
            unreachable=[f"zones/{zone}" for zone in scope.unreachable],
        )

    def get(self, call: Call) -> Mapping[str, Any]:
        """Return the disk named in the call's path."""
        return self._write(self._find(call))

    def insert(self, call: Call) -> Mapping[str, Any]:
        """Create a disk and return the operation; the disk is CREATING until the operation ends."""
        scope = self._frame.zone(call)
        body = requested_disk(call.json(), self._frame.project.parent, scope)
        target = f"{scope}/disks/{body['name']}"
        with self._frame.database.transaction():
            if found := self._frame.earlier("disks.insert", call, target):
                return self._frame.write(found)
            ready_at = self._frame.operations.next_end()
            made = self._table.add(COLLECTION, scope, body["name"], body, ready_at)
            return self._begin("insert", call, made)

    def resize(self, call: Call) -> Mapping[str, Any]:
        """Enlarge a disk and return the operation; raise a 400 if the size is not larger."""
        size = requested_size(call.json())
        with self._frame.database.transaction():
            disk = self._find(call)
            if found := self._frame.earlier("disks.resize", call, disk.path):
                return self._frame.write(found)
            if size <= int(disk.body["sizeGb"]):
                why = f"New disk size must be larger than the {disk.body['sizeGb']} GB it has."
                raise bad_value("sizeGb", size, why)
            self._table.change(disk.uid, {**disk.body, "sizeGb": str(size)})
            return self._begin("resize", call, disk)

    def update(self, call: Call) -> Mapping[str, Any]:
        """Change the access mode of a disk and return the operation.

        Raises a 400 if the disk is attached to a TPU, or if it is a Hyperdisk ML that is shared
        already, because that can't be undone.
        """
        mode = requested_access_mode(
            call.json(), call.query.get("updateMask") or call.query.get("paths", "")
        )
        with self._frame.database.transaction():
            disk = self._find(call)
            if found := self._frame.earlier("disks.update", call, disk.path):
                return self._frame.write(found)
            _check_access_mode(mode, disk.body["type"].rpartition("/")[2])
            name = f"{self._frame.project.parent}/{disk.path}"
            if users := self._attached.users(name):
                raise in_use(name, ", ".join(self._name(node) for node in users))
            if disk.body.get("accessMode") == SHARED != mode:
                why = f"A disk that is {SHARED} can't become writable again."
                raise bad_value("accessMode", mode, why)
            self._table.change(disk.uid, {**disk.body, "accessMode": mode})
            return self._begin("update", call, disk)

    def set_labels(self, call: Call) -> Mapping[str, Any]:
        """Replace a disk's labels and return the operation.

        Raises a 412 if the fingerprint in the request is not that of the current labels.
        """
        wanted = requested_labels(call.json())
        with self._frame.database.transaction():
            disk = self._find(call)
            if found := self._frame.earlier("disks.setLabels", call, disk.path):
                return self._frame.write(found)
            labels = disk.body.get("labels", {})
            if wanted.fingerprint != fingerprint(labels):
                raise ComputeError(
                    412,
                    "conditionNotMet",
                    "Labels fingerprint either invalid or resource labels have changed",
                )
            rest = {key: value for key, value in disk.body.items() if key != "labels"}
            self._table.change(
                disk.uid, {**rest, **({"labels": wanted.labels} if wanted.labels else {})}
            )
            return self._begin("setLabels", call, disk)

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Delete a disk and return the operation; raise a 400 if the disk is attached to a TPU."""
        with self._frame.database.transaction():
            target = f"{self._frame.zone(call)}/disks/{call.names['disk']}"
            if found := self._frame.earlier("disks.delete", call, target):
                return self._frame.write(found)
            disk = self._find(call)
            name = f"{self._frame.project.parent}/{disk.path}"
            if users := self._attached.users(name):
                raise in_use(name, ", ".join(self._name(node) for node in users))
            self._table.remove(disk.uid)
            operation = self._begin("delete", call, disk)
            # Delete the content in the same transaction, so that a new disk of the same name cannot
            # get it; but after _begin, which raises if a fault makes the operation fail.
            self._machines.forget_disk(disk.scope.removeprefix("zones/"), disk.name)
            return operation

    def _begin(self, verb: str, call: Call, disk: Resource) -> Mapping[str, Any]:
        method = f"disks.{verb}"
        return self._frame.begin(method, call, disk.scope, verb, disk.path, disk.uid)

    def _find(self, call: Call) -> Resource:
        scope, name = self._frame.zone(call), call.names["disk"]
        disk = self._table.get(COLLECTION, scope, name)
        if disk is None:
            raise missing(f"{self._frame.project.parent}/{scope}/disks/{name}")
        return disk

    def _name(self, node: Node) -> str:
        return f"{self._frame.project.parent}/locations/{node.zone}/nodes/{node.node_id}"

    def _write(self, disk: Resource) -> dict[str, Any]:
        users = self._attached.users(f"{self._frame.project.parent}/{disk.path}")
        links = [f"{self._endpoint}/v2/{self._name(node)}" for node in users]
        return {
            "kind": "compute#disk",
            "id": str(disk.uid),
            "creationTimestamp": disk.create_time,
            **disk.body,
            "labelFingerprint": fingerprint(disk.body.get("labels", {})),
            "type": self._frame.absolute(disk.body["type"]),
            "zone": self._frame.link(disk.scope),
            "status": "READY" if disk.ready else "CREATING",
            **({"users": links} if links else {}),
            "selfLink": self._frame.link(disk.path),
        }
