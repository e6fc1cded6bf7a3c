"""API methods that change an existing node: patch, start, stop and maintenance."""

from collections.abc import Mapping, Sequence
from typing import Any

from localcloud.api.data_disks import DataDisks
from localcloud.api.database import Database
from localcloud.api.errors import failed_precondition, invalid
from localcloud.api.lifecycle import NODE_TYPE, Lifecycle
from localcloud.api.message import read
from localcloud.api.node_message import NODES, stored
from localcloud.api.node_request import is_spot
from localcloud.api.node_table import OFF, RUN, Node, NodeTable
from localcloud.api.nodes import chosen_workers, find_node
from localcloud.api.operation_table import Operation, OperationTable
from localcloud.api.operations import write as write_operation
from localcloud.api.project import LOCATION, Project
from localcloud.api.routing import Call, Route, camel_case
from localcloud.api.versions import Version
from localcloud.machines.interface import Machines

EXTERNAL = "networkConfig.enableExternalIps"
DISKS = "dataDisks"
_MUTABLE = ("description", "tags", "labels", "metadata", EXTERNAL)
# v2alpha1 can also patch dataDisks, for gcloud alpha's attach-disk and detach-disk.
MUTABLE = {Version.V2: _MUTABLE, Version.V2ALPHA1: (*_MUTABLE, DISKS)}


class NodeChanges:
    """Handlers of the methods that change nodes.

    ``Lifecycle`` does the slow work in the background.
    """

    def __init__(
        self, database: Database, project: Project, lifecycle: Lifecycle, machines: Machines
    ) -> None:
        self._database = database
        self._nodes = NodeTable(database)
        self._disks = DataDisks(database)
        self._operations = OperationTable(database)
        self._project = project
        self._lifecycle = lifecycle
        self._machines = machines

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        node = f"{LOCATION}/nodes/{{node}}"
        alpha = node.replace("/v2/", "/v2alpha1/")
        simulate = "simulateMaintenanceEvent"
        return (
            Route("nodes.patch", "PATCH", node, self.patch, ("updateMask",)),
            Route("nodes.start", "POST", f"{node}:start", self.start),
            Route("nodes.stop", "POST", f"{node}:stop", self.stop),
            Route(f"nodes.{simulate}", "POST", f"{alpha}:{simulate}", self.simulate_maintenance),
            Route(
                "nodes.performMaintenance",
                "POST",
                f"{alpha}:performMaintenance",
                self.perform_maintenance,
            ),
        )

    def patch(self, call: Call) -> Mapping[str, Any]:
        """Change the node's fields named in ``updateMask``; return the operation.

        The operation has ended already, unless ``updateMask`` contains the data disks.
        """
        new = read(call.json(), NODES[call.version], "node")
        fields = _mask(call.query.get("updateMask", ""), MUTABLE[call.version])
        with self._database.transaction():
            node = find_node(call, self._nodes, self._project)
            if node.state not in ("READY", "STOPPED"):
                raise failed_precondition(f"{node.node_id} is {node.state}, not READY or STOPPED")
            if DISKS in fields:
                wanted, parent = new.get(DISKS, ()), self._project.parent
                self._disks.check(wanted, parent, node.zone, len(node.workers), owner=node.uid)
            self._nodes.change_body(node.uid, _patched(node, new, fields))
            operation = self._add(call, node, "update")
            if DISKS not in fields:
                self._finish(operation, node)
        if DISKS in fields:
            return self._begin(call, operation)
        ended = self._operations.get(operation.zone, operation.operation_id) or operation
        return write_operation(ended, self._project.parent, call.version)

    def _finish(self, operation: Operation, node: Node) -> None:
        message = stored(self._nodes.by_uid(node.uid), self._project.parent)
        self._operations.succeed(operation, {"@type": NODE_TYPE, **message})

    def stop(self, call: Call) -> Mapping[str, Any]:
        """Start powering off a single-worker node; return the running operation."""
        return self._switch(call, "stop", ("READY",), "STOPPING", OFF)

    def start(self, call: Call) -> Mapping[str, Any]:
        """Start powering on a stopped node; return the running operation."""
        return self._switch(call, "start", ("STOPPED",), "STARTING", RUN)

    def _switch(
        self, call: Call, verb: str, states: Sequence[str], to: str, wanted: str
    ) -> Mapping[str, Any]:
        call.json()
        with self._database.transaction():
            node = find_node(call, self._nodes, self._project)
            if len(node.workers) > 1:
                raise failed_precondition(
                    f"{node.node_id} has {len(node.workers)} workers: only a TPU with one worker "
                    f"can {verb}; delete it and create it again"
                )
            if is_spot(node.body):
                raise failed_precondition(
                    f"{node.node_id} is spot or preemptible and cannot {verb}: "
                    "delete it and create it again"
                )
            self._move(node, states, to, wanted)
            operation = self._add(call, node, verb)
        return self._begin(call, operation)

    def simulate_maintenance(self, call: Call) -> Mapping[str, Any]:
        """Start maintenance of one worker: its machine reboots, its external address changes.

        The request body is ``{workerIds[]}``. Only the first id is used; worker 0 by default.
        """
        ids = call.json().get("workerIds", [])
        node = find_node(call, self._nodes, self._project)
        return self._maintain(call, [it.index for it in chosen_workers(node, ids)[:1]])

    def perform_maintenance(self, call: Call) -> Mapping[str, Any]:
        """Start maintenance of all workers of a node; return the running operation."""
        call.json()
        node = find_node(call, self._nodes, self._project)
        return self._maintain(call, [it.index for it in node.workers])

    def _maintain(self, call: Call, indices: Sequence[int]) -> Mapping[str, Any]:
        with self._database.transaction():
            node = find_node(call, self._nodes, self._project)
            self._move(node, ("READY",), "REPAIRING", RUN)
            pool = self._machines.addresses()
            for index in indices:
                self._nodes.move_outside(node.uid, index, pool)
            detail = {"workers": list(indices)}
            operation = self._add(call, node, "simulateMaintenanceEvent", detail)
        return self._begin(call, operation)

    def _move(self, node: Node, states: Sequence[str], to: str, wanted: str) -> None:
        if not self._nodes.move(node.uid, states, to, wanted=wanted):
            raise failed_precondition(f"{node.node_id} is {node.state}, not {' or '.join(states)}")

    def _add(
        self, call: Call, node: Node, verb: str, detail: Mapping[str, Any] | None = None
    ) -> Operation:
        name = f"{self._project.parent}/locations/{node.zone}/nodes/{node.node_id}"
        return self._operations.add(node.zone, node.uid, verb, name, detail, version=call.version)

    def _begin(self, call: Call, operation: Operation) -> Mapping[str, Any]:
        self._lifecycle.begin(operation)
        return write_operation(operation, self._project.parent, call.version)


def _mask(text: str, mutable: Sequence[str]) -> list[str]:
    """Parse a field mask; raise a 400 if it is empty or names a field not in ``mutable``."""
    fields = [".".join(map(camel_case, name.split("."))) for name in text.split(",") if name]
    known = ", ".join(mutable)
    if not fields:
        raise invalid("updateMask", f"updateMask must name the fields to change: {known}")
    for field in fields:
        if field not in mutable:
            raise invalid("updateMask", f"{field} cannot be changed; allowed: {known}")
    return fields


def _patched(node: Node, new: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return the node's body with ``fields`` copied from ``new``, or removed if absent there."""
    body = dict(node.body)
    for field in fields:
        if field == EXTERNAL:
            if "networkConfig" not in body:
                why = f"{node.node_id} has networkConfigs, so {EXTERNAL} cannot be changed"
                raise invalid("updateMask", why)
            network = dict(body["networkConfig"])
            network.pop("enableExternalIps", None)
            if new.get("networkConfig", {}).get("enableExternalIps"):
                network["enableExternalIps"] = True
            body["networkConfig"] = network
        else:
            body.pop(field, None)
            if field in new:
                body[field] = new[field]
    return body
