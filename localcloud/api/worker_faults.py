"""API methods that inject faults into single workers: hang, lost network, full disk, power off.

The node stays READY, as on Google Cloud when a worker is unreachable. The machines themselves hold
the state of the faults, so faults survive a restart of the server.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from localcloud.api.admin import one_node
from localcloud.api.database import Database
from localcloud.api.errors import ApiError, failed_precondition, invalid
from localcloud.api.lifecycle import Lifecycle
from localcloud.api.node_table import RUN, Node, NodeTable, Worker
from localcloud.api.nodes import chosen_workers
from localcloud.api.project import Project
from localcloud.api.routing import Call, Route
from localcloud.machines.interface import MACHINE_FAULTS, MachineError, MachineFault, Machines


class WorkerFaults:
    """Handlers of the methods that inject and clear faults of workers."""

    def __init__(
        self, database: Database, project: Project, lifecycle: Lifecycle, machines: Machines
    ) -> None:
        self._nodes = NodeTable(database)
        self._project = project
        self._lifecycle = lifecycle
        self._machines = machines

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        here = "/_localcloud"
        verbs = {
            "inject": self.inject,
            "clear": self.clear,
            "powerOff": self.power_off,
            "powerOn": self.power_on,
        }
        nodes = {
            "": f"{here}/nodes/{{node}}",
            "InZone": f"{here}/locations/{{zone}}/nodes/{{node}}",
        }
        return (
            Route("localcloud.workerFaults", "GET", f"{here}/workerFaults", self.show),
            *(
                Route(f"localcloud.{verb}{suffix}", "POST", f"{node}:{verb}", handler)
                for verb, handler in verbs.items()
                for suffix, node in nodes.items()
            ),
        )

    def show(self, call: Call) -> Mapping[str, Any]:
        """Return the workers with faults: ``{workers[]{worker, zone, faults[]}}``."""
        found = []
        for node in self._nodes.everything():
            for worker in node.workers:
                if faults := list(self._machines.faults(worker.machine)):
                    name = f"{node.node_id}-w{worker.index}"
                    found.append({"worker": name, "zone": node.zone, "faults": faults})
        return {"workers": found}

    def clear_all(self) -> None:
        """Clear all faults of all machines."""
        for node in self._nodes.everything():
            for worker in node.workers:
                for fault in self._machines.faults(worker.machine):
                    # Ignore the error of a machine that is now off: it has no faults any more.
                    with suppress(MachineError):
                        self._machines.clear(worker.machine, fault)

    def inject(self, call: Call) -> Mapping[str, Any]:
        """Inject a fault into workers; the request body is ``{workerIds[], fault}``.

        No ids select all workers of the node.
        """
        body = call.json()
        fault = _fault(body.get("fault"))
        return self._each(call, lambda _, worker: self._machines.inject(worker.machine, fault))

    def clear(self, call: Call) -> Mapping[str, Any]:
        """Clear a fault of workers; the request body is ``{workerIds[], fault}``.

        No ids select all workers of the node; without ``fault``, all faults are cleared.
        """
        name = call.json().get("fault")
        faults: Sequence[MachineFault] = MACHINE_FAULTS if name is None else [_fault(name)]

        def clear(_: Node, worker: Worker) -> None:
            for fault in faults:
                self._machines.clear(worker.machine, fault)

        return self._each(call, clear)

    def power_off(self, call: Call) -> Mapping[str, Any]:
        """Power off workers without a shutdown; the request body is ``{workerIds[]}``."""
        return self._each(call, self._lifecycle.power_off)

    def power_on(self, call: Call) -> Mapping[str, Any]:
        """Start booting powered-off workers; the request body is ``{workerIds[]}``."""
        return self._each(call, self._lifecycle.boot)

    def _each(self, call: Call, action: Any) -> Mapping[str, Any]:
        """Call ``action(node, worker)`` for each requested worker; return the workers' names."""
        node = one_node(call, self._nodes, self._project)
        if node.wanted != RUN or not node.workers:
            raise failed_precondition(f"{node.node_id} is {node.state}: it has no machines")
        workers = chosen_workers(node, call.json().get("workerIds", []))
        for worker in workers:
            try:
                action(node, worker)
            except MachineError as error:
                raise ApiError(400, str(error)) from error
        return {"workers": [f"{node.node_id}-w{worker.index}" for worker in workers]}


def _fault(name: Any) -> MachineFault:
    if name not in MACHINE_FAULTS:
        raise invalid("fault", f"fault is {name!r}, not one of {', '.join(MACHINE_FAULTS)}")
    return name
