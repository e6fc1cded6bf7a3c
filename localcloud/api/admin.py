"""API methods that control the local cloud: status, preemption, faults, node health.

Google's API has no such methods, so their paths begin with ``/_localcloud``. Like Google's methods,
they require an access token.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api.clock import timestamp
from localcloud.api.database import Database
from localcloud.api.errors import ApiError, failed_precondition, invalid, not_found
from localcloud.api.faults import Faults
from localcloud.api.lifecycle import Lifecycle
from localcloud.api.message import Choice, Message, Repeated, read
from localcloud.api.node_message import HEALTHS, SYMPTOMS, write
from localcloud.api.node_table import Node, NodeTable
from localcloud.api.nodes import chosen_workers
from localcloud.api.operation_table import OperationTable
from localcloud.api.operations import write as write_operation
from localcloud.api.project import Project
from localcloud.api.queued_resource_table import QueuedResourceTable
from localcloud.api.routing import Call, Route
from localcloud.machines.interface import MachineError, Machines

LONGEST_WARNING_S = 86400
_SYMPTOM = Message({"symptomType": Choice(SYMPTOMS), "workerId": str, "details": str})
CONDITION = Message(
    {"health": Choice(HEALTHS), "healthDescription": str, "symptoms": Repeated(_SYMPTOM)}
)


class Admin:
    """Handlers of the methods that control the local cloud."""

    def __init__(
        self,
        database: Database,
        project: Project,
        lifecycle: Lifecycle,
        machines: Machines,
        faults: Faults,
        clear_worker_faults: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self._database = database
        self._requests = QueuedResourceTable(database)
        self._clear_worker_faults = clear_worker_faults
        self._changed = changed
        self._nodes = NodeTable(database)
        self._operations = OperationTable(database)
        self._project = project
        self._lifecycle = lifecycle
        self._machines = machines
        self._faults = faults

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        here = "/_localcloud"
        one = "nodes/{node}"
        in_zone = f"locations/{{zone}}/{one}"
        preempt, health = self.preempt, self.set_health
        return (
            Route("localcloud.status", "GET", f"{here}/status", self.status),
            Route("localcloud.faults.get", "GET", f"{here}/faults", self.show_faults),
            Route("localcloud.faults.set", "POST", f"{here}/faults", self.set_faults),
            Route("localcloud.faults.add", "POST", f"{here}/faults:add", self.add_faults),
            Route("localcloud.faults.clear", "POST", f"{here}/faults:clear", self.clear_faults),
            Route("localcloud.preempt", "POST", f"{here}/{one}:preempt", preempt),
            Route("localcloud.preemptInZone", "POST", f"{here}/{in_zone}:preempt", preempt),
            Route("localcloud.setHealth", "POST", f"{here}/{one}:setHealth", health),
            Route("localcloud.setHealthInZone", "POST", f"{here}/{in_zone}:setHealth", health),
        )

    def status(self, call: Call) -> Mapping[str, Any]:
        """Return the state of the cloud.

        It consists of the nodes with their machines, the queued resources, the running operations,
        the number of addresses and the active faults.
        """
        nodes = self._nodes.everything()
        used = sum(len(node.workers) for node in nodes)
        total = len(self._machines.addresses())
        running = self._operations.running()
        return {
            "project": self._project.parent.partition("/")[2],
            "nodes": [self._describe(node) for node in nodes],
            "queuedResources": [
                {"name": it.request_name, "zone": it.zone, "state": it.state}
                for it in self._requests.everything()
            ],
            "operations": [write_operation(it, self._project.parent) for it in running],
            "addresses": {"total": total, "free": total - used},
            "faults": self._faults.show(),
        }

    def _describe(self, node: Node) -> dict[str, Any]:
        return {
            "name": node.node_id,
            "zone": node.zone,
            "state": node.state,
            "trouble": node.trouble,
            **({"preemptTime": timestamp(node.preempt_at)} if node.preempt_at else {}),
            "acceleratorType": node.body["acceleratorType"],
            "workers": [
                {
                    "machine": worker.machine,
                    "address": str(worker.address),
                    "alive": self._machines.alive(worker.machine),
                }
                for worker in node.workers
            ],
        }

    def show_faults(self, call: Call) -> Mapping[str, Any]:
        """Return the active faults."""
        return self._faults.show()

    def set_faults(self, call: Call) -> Mapping[str, Any]:
        """Replace the active faults of the given kinds; return all active faults.

        The request body is the argument of ``Faults.change``.
        """
        self._faults.change(call.json())
        self._changed()
        return self._faults.show()

    def add_faults(self, call: Call) -> Mapping[str, Any]:
        """Add faults to the active faults; return all active faults.

        The request body is the argument of ``Faults.change``.
        """
        self._faults.change(call.json(), add=True)
        self._changed()
        return self._faults.show()

    def clear_faults(self, call: Call) -> Mapping[str, Any]:
        """End all faults of API calls and of workers; return the empty lists of active faults."""
        self._faults.clear()
        self._clear_worker_faults()
        self._changed()
        return self._faults.show()

    def preempt(self, call: Call) -> Mapping[str, Any]:
        """Preempt a node and return it.

        If the request body is ``{warningSeconds}``, only announce that the node will be preempted
        after this time. A later call can preempt the node earlier.
        """
        warning = call.json().get("warningSeconds", 0)
        if type(warning) not in (int, float) or not 0 <= warning <= LONGEST_WARNING_S:
            message = f"warningSeconds is {warning!r}, not 0 to {LONGEST_WARNING_S}"
            raise invalid("warningSeconds", message)
        node = self._one(call)
        if warning:
            with self._database.transaction():
                node = self._one(call)
                if node.state != "READY":
                    raise failed_precondition(f"{node.node_id} is {node.state}, not READY")
                self._nodes.announce_preemption(node.uid, time.time() + warning)
            self._changed()
            return write(node, self._project.parent)
        try:
            self._lifecycle.preempt(node)
        except MachineError as error:
            raise ApiError(500, f"{node.node_id} is preempted, but {error}") from error
        now = self._nodes.find(node.uid)
        return write(now, self._project.parent) if now else {}

    def set_health(self, call: Call) -> Mapping[str, Any]:
        """Set a READY node's health and return the node.

        The request body is ``{health, healthDescription, symptoms[]{symptomType, workerId,
        details}}``; an empty body makes the node HEALTHY.
        """
        condition = read(call.json(), CONDITION, "condition")
        with self._database.transaction():
            node = self._one(call)
            for symptom in condition.get("symptoms", ()):
                chosen_workers(node, [symptom.setdefault("workerId", "0")])
                symptom["createTime"] = timestamp()
            self._nodes.set_condition(node.uid, condition)
            return write(self._nodes.by_uid(node.uid), self._project.parent)

    def _one(self, call: Call) -> Node:
        return one_node(call, self._nodes, self._project)


def one_node(call: Call, nodes: NodeTable, project: Project) -> Node:
    """Return the node named in the call's path, which may omit the zone.

    Raises a 404 if there is no such node, a 400 if the path omits the zone and several zones have
    a node of this name.
    """
    node_id, zone = call.names["node"], call.names.get("zone")
    found = [node for node in nodes.named(node_id) if zone in (None, node.zone)]
    if not found:
        raise not_found(f"{project.parent}/locations/{zone or '-'}/nodes/{node_id}")
    if len(found) > 1:
        zones = ", ".join(node.zone for node in found)
        raise failed_precondition(
            f"{node_id} is in several zones ({zones}). Use --zone, "
            f"or /_localcloud/locations/ZONE/nodes/{node_id}"
        )
    return found[0]
