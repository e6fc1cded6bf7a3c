"""What no cloud offers and a local one should: preempt at will, faults, the whole state at once.

Not part of Google's API, hence under ``/_localcloud``; a token is needed as everywhere.
"""

from collections.abc import Mapping
from typing import Any

from localcloud.api.database import Database
from localcloud.api.errors import ApiError, failed_precondition, not_found
from localcloud.api.faults import Faults
from localcloud.api.lifecycle import Lifecycle
from localcloud.api.node_message import write
from localcloud.api.node_table import Node, NodeTable
from localcloud.api.operation_table import OperationTable
from localcloud.api.operations import write as write_operation
from localcloud.api.project import Project
from localcloud.api.routing import Call, Route
from localcloud.machines.seam import MachineError, Machines


class Admin:
    """Answers the local cloud's own methods."""

    def __init__(
        self,
        database: Database,
        project: Project,
        lifecycle: Lifecycle,
        machines: Machines,
        faults: Faults,
    ) -> None:
        self._nodes = NodeTable(database)
        self._operations = OperationTable(database)
        self._project = project
        self._lifecycle = lifecycle
        self._machines = machines
        self._faults = faults

    def routes(self) -> tuple[Route, ...]:
        """Give the methods with their paths."""
        preempt = ":preempt"
        return (
            Route("localcloud.status", "GET", "/_localcloud/status", self.status),
            Route("localcloud.faults.get", "GET", "/_localcloud/faults", self.show_faults),
            Route("localcloud.faults.set", "POST", "/_localcloud/faults", self.set_faults),
            Route(
                "localcloud.preempt",
                "POST",
                f"/_localcloud/nodes/{{node}}{preempt}",
                self.preempt,
            ),
            Route(
                "localcloud.preemptInZone",
                "POST",
                f"/_localcloud/locations/{{zone}}/nodes/{{node}}{preempt}",
                self.preempt,
            ),
        )

    def status(self, call: Call) -> Mapping[str, Any]:
        """Give all there is: nodes with machines, what is under way, free addresses, faults."""
        nodes = self._nodes.everything()
        used = sum(len(node.workers) for node in nodes)
        total = len(self._machines.addresses())
        under_way = self._operations.under_way()
        return {
            "project": self._project.parent.partition("/")[2],
            "nodes": [self._describe(node) for node in nodes],
            "operations": [write_operation(it, self._project.parent) for it in under_way],
            "addresses": {"total": total, "free": total - used},
            "faults": self._faults.show(),
        }

    def _describe(self, node: Node) -> dict[str, Any]:
        return {
            "name": node.node_id,
            "zone": node.zone,
            "state": node.state,
            "trouble": node.trouble,
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
        """Give the faults in force."""
        return self._faults.show()

    def set_faults(self, call: Call) -> Mapping[str, Any]:
        """Put faults in force; answers those in force now. See Faults.change for the body."""
        self._faults.change(call.json())
        return self._faults.show()

    def preempt(self, call: Call) -> Mapping[str, Any]:
        """Take a node away as Google takes a spot TPU; answers the node, PREEMPTED."""
        node_id, zone = call.names["node"], call.names.get("zone")
        found = [node for node in self._nodes.named(node_id) if zone in (None, node.zone)]
        if not found:
            raise not_found(f"{self._project.parent}/locations/{zone or '-'}/nodes/{node_id}")
        if len(found) > 1:
            zones = ", ".join(node.zone for node in found)
            raise failed_precondition(
                f"{node_id} is in {zones}: say which by /_localcloud/locations/ZONE/nodes/{node_id}"
            )
        try:
            self._lifecycle.preempt(found[0])
        except MachineError as error:
            raise ApiError(500, f"{node_id} is preempted, but {error}") from error
        now = self._nodes.find(found[0].uid)
        return write(now, self._project.parent) if now else {}
