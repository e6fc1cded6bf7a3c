"""The part of the Compute API v1 that TPU clients use, on the same port as the Cloud TPU API.

As at Google, requests are validated, changes return operations, and a resource in use cannot be
deleted. But the resources have little effect: firewall rules filter no packets, all networks stand
for the machines' one network, and disks become block devices only on qemu machines.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api.compute_catalog import MachineTypes, Places
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
    name = project.parent.partition("/")[2]
    account = f"compute@{name}.iam.gserviceaccount.com"
    frame = Frame(database, project, endpoint, f"fleet@{name}.iam.gserviceaccount.com", faults)
    return (
        *Networks(frame, machines.addresses).routes(),
        *Firewalls(frame).routes(),
        *Disks(frame, machines).routes(),
        *ComputeProject(frame, account).routes(),
        *ComputeOperations(frame).routes(),
        *Places(frame).routes(),
        *MachineTypes(frame).routes(),
    )


FIELDS = ("status", "operationType", "targetLink", "user", "insertTime", "progress")


class ComputeOperations:
    """Handlers of the methods for global, zonal and regional operations."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        kinds: tuple[tuple[str, str, Callable[[Call], str]], ...] = (
            ("global", "global", lambda _call: "global"),
            ("zone", "zones/{zone}", self._frame.zone),
            ("region", "regions/{region}", self._frame.region),
        )
        return tuple(route for kind in kinds for route in self._routes(*kind))

    def _routes(
        self, kind: str, place: str, scope: Callable[[Call], str]
    ) -> tuple[Route, Route, Route, Route]:
        name = f"compute.{kind}Operations"
        every = f"{PROJECT}/{place}/operations"
        one = f"{every}/{{operation}}"

        def listed(call: Call) -> Mapping[str, Any]:
            here = scope(call)
            items = [self._frame.write(it) for it in self._frame.operations.all(here)]
            return self._frame.page("operationList", f"{here}/operations", items, call, FIELDS)

        def get(call: Call) -> Mapping[str, Any]:
            return self._frame.write(self._find(call, scope(call)))

        def wait(call: Call) -> Mapping[str, Any]:
            call.json()
            operation = self._find(call, scope(call))
            time.sleep(max(0.0, operation.ends - time.time()))
            return self._frame.write(operation)

        def delete(call: Call) -> Mapping[str, Any]:
            operation = self._find(call, scope(call))
            if time.time() < operation.ends:
                message = f"The operation '{operation.name}' is running: wait for its end"
                raise ComputeError(400, "resourceNotReady", message)
            self._frame.operations.forget(operation.uid)
            return {}

        return (
            Route(f"{name}.list", "GET", every, listed, SELECTION),
            Route(f"{name}.get", "GET", one, get),
            Route(f"{name}.delete", "DELETE", one, delete),
            Route(f"{name}.wait", "POST", f"{one}/wait", wait),
        )

    def _find(self, call: Call, scope: str) -> ComputeOperation:
        name = call.names["operation"]
        operation = self._frame.operations.get(scope, name)
        if operation is None:
            raise missing(f"{self._frame.project.parent}/{scope}/operations/{name}")
        return operation
