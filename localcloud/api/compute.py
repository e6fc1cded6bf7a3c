"""The part of the Compute API v1 that TPU clients use, on the same port as the Cloud TPU API.

As at Google, requests are validated, changes return operations, and a resource in use cannot be
deleted. Disks are real: the machines see them as block devices. Firewall rules and networks are
only stored: the rules filter no packets, and all machines are in one real network.
"""

import time
from collections.abc import Mapping
from typing import Any

from localcloud.api.catalog import PARENT
from localcloud.api.compute_catalog import ComputeCatalog
from localcloud.api.compute_disks import Disks
from localcloud.api.compute_errors import ComputeError, missing
from localcloud.api.compute_firewalls import Firewalls
from localcloud.api.compute_frame import PROJECT, SELECTION, Frame
from localcloud.api.compute_networks import Networks
from localcloud.api.compute_operation_table import ComputeOperation
from localcloud.api.compute_project import ComputeProject
from localcloud.api.database import Database
from localcloud.api.faults import Faults
from localcloud.api.project import Project
from localcloud.api.routing import Call, Route
from localcloud.machines.interface import Machines


def compute_routes(
    database: Database, project: Project, endpoint: str, machines: Machines, faults: Faults
) -> tuple[Route, ...]:
    """Return the HTTP routes of the Compute API; ``endpoint`` is the server's URL."""
    frame = Frame(database, project, endpoint, faults)
    return (
        *Networks(frame, machines.addresses).routes(),
        *Firewalls(frame).routes(),
        *Disks(frame, machines).routes(),
        *ComputeProject(frame).routes(),
        *ComputeOperations(frame).routes(),
        *ComputeCatalog(frame).routes(),
    )


FIELDS = ("status", "operationType", "targetLink", "user", "insertTime", "progress")


class ComputeOperations:
    """Handlers of the methods for global, zonal and regional operations."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        return (
            *self._routes("compute.globalOperations", f"{PROJECT}/global/operations"),
            *self._routes("compute.zoneOperations", f"{PROJECT}/zones/{{zone}}/operations"),
            *self._routes("compute.regionOperations", f"{PROJECT}/regions/{{region}}/operations"),
        )

    def _routes(self, name: str, collection: str) -> tuple[Route, ...]:
        resource = f"{collection}/{{operation}}"
        return (
            Route(f"{name}.list", "GET", collection, self._list, SELECTION),
            Route(f"{name}.get", "GET", resource, self._get),
            Route(f"{name}.delete", "DELETE", resource, self._delete),
            Route(f"{name}.wait", "POST", f"{resource}/wait", self._wait),
        )

    def _list(self, call: Call) -> Mapping[str, Any]:
        scope = self._frame.scope(call)
        items = [self._frame.write(operation) for operation in self._frame.operations.all(scope)]
        return self._frame.page("operation", scope, items, call, FIELDS)

    def _get(self, call: Call) -> Mapping[str, Any]:
        return self._frame.write(self._find(call))

    def _wait(self, call: Call) -> Mapping[str, Any]:
        call.json()
        operation = self._find(call)
        time.sleep(max(0.0, operation.ends - time.time()))
        return self._frame.write(operation)

    def _delete(self, call: Call) -> Mapping[str, Any]:
        operation = self._find(call)
        if time.time() < operation.ends:
            message = f"The operation '{operation.name}' is running: wait for its end"
            raise ComputeError(400, "resourceNotReady", message)
        self._frame.operations.forget(operation.uid)
        return {}

    def _find(self, call: Call) -> ComputeOperation:
        scope, name = self._frame.scope(call), call.names["operation"]
        operation = self._frame.operations.get(scope, name)
        if operation is None:
            raise missing(f"{PARENT}/{scope}/operations/{name}")
        return operation
