"""The methods of Compute's zonal ``disks``: records; what a disk holds is the machines' part."""

from collections.abc import Mapping
from typing import Any

from localcloud.api.compute_disk_message import (
    requested_disk,
    requested_labels,
    requested_size,
)
from localcloud.api.compute_errors import ComputeError, bad_value, in_use, missing
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
from localcloud.api.node_table import Node
from localcloud.api.routing import Call, Route
from localcloud.machines.seam import Machines

FIELDS = ("type", "sizeGb", "status", "zone", "description", "labels")


class Disks:
    """Answers what is asked of disks."""

    def __init__(self, frame: Frame, endpoint: str, machines: Machines) -> None:
        self._frame = frame
        self._machines = machines
        self._table = ResourceTable(frame.database)
        self._attached = DataDisks(frame.database)
        self._endpoint = endpoint

    def routes(self) -> tuple[Route, ...]:
        """Give the methods with their paths."""
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
            Route("compute.disks.setLabels", "POST", f"{one}/setLabels", self.set_labels, ids),
        )

    def list(self, call: Call) -> Mapping[str, Any]:
        """Give a page of a zone's disks."""
        scope = self._frame.zone(call)
        items = [self._write(it) for it in self._table.all(COLLECTION, scope)]
        return self._frame.page("diskList", f"{scope}/disks", items, call, FIELDS)

    def list_everywhere(self, call: Call) -> Mapping[str, Any]:
        """Give a page of all zones' disks, by zone; a zone that is away is named."""
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
            away=[f"zones/{zone}" for zone in scope.unreachable],
        )

    def get(self, call: Call) -> Mapping[str, Any]:
        """Give one disk."""
        return self._write(self._find(call))

    def insert(self, call: Call) -> Mapping[str, Any]:
        """Make a disk; answers the operation, until whose end the disk is CREATING."""
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
        """Make a disk larger; answers the operation."""
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

    def set_labels(self, call: Call) -> Mapping[str, Any]:
        """Replace a disk's labels if the fingerprint is the present one, else raise a 412."""
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
        """Remove a disk that no TPU has; answers the operation."""
        with self._frame.database.transaction():
            target = f"{self._frame.zone(call)}/disks/{call.names['disk']}"
            if found := self._frame.earlier("disks.delete", call, target):
                return self._frame.write(found)
            disk = self._find(call)
            name = f"{self._frame.project.parent}/{disk.path}"
            if users := self._attached.users(name):
                raise in_use(name, ", ".join(self._name(node) for node in users))
            self._table.remove(disk.uid)
            # Before the record is gone for good: else a new disk of this name had the old content.
            self._machines.forget_disk(disk.scope.removeprefix("zones/"), disk.name)
            return self._begin("delete", call, disk)

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
