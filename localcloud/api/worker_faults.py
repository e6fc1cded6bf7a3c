"""Faults of one worker: its machine hangs, loses its network, has a full disk, dies.

The API goes on showing the node as it was, READY: so does Google's, where it is the worker that
cannot be reached. What a machine suffers is asked of the machine, so that it outlives the server.
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
from localcloud.machines.seam import TROUBLES, MachineError, Machines, Trouble


class WorkerFaults:
    """Answers what makes single workers fail, and mends them."""

    def __init__(
        self, database: Database, project: Project, lifecycle: Lifecycle, machines: Machines
    ) -> None:
        self._nodes = NodeTable(database)
        self._project = project
        self._lifecycle = lifecycle
        self._machines = machines

    def routes(self) -> tuple[Route, ...]:
        """Give the methods with their paths."""
        here = "/_localcloud"
        verbs = {
            "afflict": self.afflict,
            "relieve": self.relieve,
            "powerOff": self.power_off,
            "powerOn": self.power_on,
        }
        nodes = {
            "": f"{here}/nodes/{{node}}",
            "InZone": f"{here}/locations/{{zone}}/nodes/{{node}}",
        }
        return (
            Route("localcloud.troubles", "GET", f"{here}/troubles", self.show),
            *(
                Route(f"localcloud.{verb}{suffix}", "POST", f"{node}:{verb}", handler)
                for verb, handler in verbs.items()
                for suffix, node in nodes.items()
            ),
        )

    def show(self, call: Call) -> Mapping[str, Any]:
        """Give the workers in trouble: ``{workers[]{worker, zone, troubles[]}}``."""
        found = []
        for node in self._nodes.everything():
            for worker in node.workers:
                if troubles := list(self._machines.troubles(worker.machine)):
                    name = f"{node.node_id}-w{worker.index}"
                    found.append({"worker": name, "zone": node.zone, "troubles": troubles})
        return {"workers": found}

    def relieve_all(self) -> None:
        """Take every trouble from every machine."""
        for node in self._nodes.everything():
            for worker in node.workers:
                for trouble in self._machines.troubles(worker.machine):
                    with suppress(MachineError):  # it went off meanwhile: so did its trouble
                        self._machines.relieve(worker.machine, trouble)

    def afflict(self, call: Call) -> Mapping[str, Any]:
        """Put workers into a trouble: ``{workerIds[], trouble}``, all of them without ids."""
        body = call.json()
        trouble = _trouble(body.get("trouble"))
        return self._each(call, lambda _, worker: self._machines.afflict(worker.machine, trouble))

    def relieve(self, call: Call) -> Mapping[str, Any]:
        """Take a trouble from workers, or all where none is said: ``{workerIds[], trouble}``."""
        said = call.json().get("trouble")
        troubles: Sequence[Trouble] = TROUBLES if said is None else [_trouble(said)]

        def relieve(_: Node, worker: Worker) -> None:
            for trouble in troubles:
                self._machines.relieve(worker.machine, trouble)

        return self._each(call, relieve)

    def power_off(self, call: Call) -> Mapping[str, Any]:
        """Let workers' machines die at once: ``{workerIds[]}``."""
        return self._each(call, self._lifecycle.power_off)

    def power_on(self, call: Call) -> Mapping[str, Any]:
        """Begin to boot workers' machines that are off: ``{workerIds[]}``."""
        return self._each(call, self._lifecycle.boot)

    def _each(self, call: Call, verb: Any) -> Mapping[str, Any]:
        """Do it to each worker that the body names; answers their names."""
        node = one_node(call, self._nodes, self._project)
        if node.wanted != RUN or not node.workers:
            raise failed_precondition(f"{node.node_id} is {node.state}: it has no machines to fail")
        workers = chosen_workers(node, call.json().get("workerIds", []))
        for worker in workers:
            try:
                verb(node, worker)
            except MachineError as error:
                raise ApiError(400, str(error)) from error
        return {"workers": [f"{node.node_id}-w{worker.index}" for worker in workers]}


def _trouble(said: Any) -> Trouble:
    if said not in TROUBLES:
        raise invalid("trouble", f"trouble is {said!r}, not one of {', '.join(TROUBLES)}")
    return said
