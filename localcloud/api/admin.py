"""API methods that control the local cloud: status, preemption, faults, node health.

Google's API has no such methods, so their paths begin with ``/_localcloud``. The methods require an
access token, as Google's do.

A fault of a worker (hang, lost network, full disk, power off) leaves its node READY, as on Google
Cloud when a worker is unreachable. The machines themselves hold the state of these faults, so the
faults survive a restart of the server.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from localcloud.api.catalog import PROJECT_ID, name_of
from localcloud.api.clock import timestamp
from localcloud.api.errors import ApiError, failed_precondition, invalid, not_found
from localcloud.api.jobs import StoppingError
from localcloud.api.message import Choice, Message, Repeated, read
from localcloud.api.methods import Methods, chosen_workers
from localcloud.api.node_message import HEALTHS, SYMPTOMS, write
from localcloud.api.node_table import RUN, Node, Worker
from localcloud.api.operations import write as write_operation
from localcloud.api.routing import Call, Route
from localcloud.machines.interface import MACHINE_FAULTS, MachineError, MachineFault

LONGEST_WARNING_S = 86400
_SYMPTOM = Message({"symptomType": Choice(SYMPTOMS), "workerId": str, "details": str})
CONDITION = Message(
    {"health": Choice(HEALTHS), "healthDescription": str, "symptoms": Repeated(_SYMPTOM)}
)


class Admin(Methods):
    """Handlers of the methods that control the local cloud."""

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        prefix = "/_localcloud"
        node_handlers = {
            "preempt": self._preempt,
            "setHealth": self._set_health,
            "inject": self._inject,
            "clear": self._clear,
            "powerOff": self._power_off,
            "powerOn": self._power_on,
        }
        node_paths = {
            "": f"{prefix}/nodes/{{node}}",
            "InZone": f"{prefix}/locations/{{zone}}/nodes/{{node}}",
        }
        set_faults = partial(self._change_faults, add=False)
        add_faults = partial(self._change_faults, add=True)
        return (
            Route("localcloud.status", "GET", f"{prefix}/status", self._status),
            Route("localcloud.faults.get", "GET", f"{prefix}/faults", self._show_faults),
            Route("localcloud.faults.set", "POST", f"{prefix}/faults", set_faults),
            Route("localcloud.faults.add", "POST", f"{prefix}/faults:add", add_faults),
            Route("localcloud.faults.clear", "POST", f"{prefix}/faults:clear", self._clear_faults),
            Route("localcloud.workerFaults", "GET", f"{prefix}/workerFaults", self._worker_faults),
            *(
                Route(f"localcloud.{verb}{suffix}", "POST", f"{node}:{verb}", handler)
                for verb, handler in node_handlers.items()
                for suffix, node in node_paths.items()
            ),
        )

    def _status(self, call: Call) -> Mapping[str, Any]:
        """Return a summary of the cloud.

        It contains the nodes, the queued resources, the running operations, how many machine
        addresses there are and how many are free, and the active faults of the API.
        """
        nodes = self._nodes.all()
        used = sum(len(node.workers) for node in nodes)
        total = len(self._machines.addresses())
        running = self._operations.running()
        return {
            "project": PROJECT_ID,
            "nodes": [self._describe(node) for node in nodes],
            "queuedResources": [
                {"name": item.request_name, "zone": item.zone, "state": item.state}
                for item in self._requests.all()
            ],
            "operations": [write_operation(item) for item in running],
            "addresses": {"total": total, "free": total - used},
            "faults": self._faults.show(),
        }

    def _describe(self, node: Node) -> dict[str, Any]:
        return {
            "name": node.node_id,
            "zone": node.zone,
            "state": node.state,
            "trouble": node.last_error,
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

    def _show_faults(self, call: Call) -> Mapping[str, Any]:
        return self._faults.show()

    def _change_faults(self, call: Call, *, add: bool) -> Mapping[str, Any]:
        """Change the faults of the API as the request body says; return all active faults.

        With ``add``, the requested faults are added, else they replace the faults of the same kinds
        (see ``Faults.change``).
        """
        self._faults.change(call.json(), add=add)
        self._wake()
        return self._faults.show()

    def _clear_faults(self, call: Call) -> Mapping[str, Any]:
        """End all faults of the API and of workers; workers that are powered off stay off."""
        self._faults.clear()
        for node in self._nodes.all():
            for worker in node.workers:
                for fault in self._machines.faults(worker.machine):
                    # Ignore the error of a machine that is now off: it has no faults any more.
                    with suppress(MachineError):
                        self._machines.clear(worker.machine, fault)
        self._wake()
        return self._faults.show()

    def _preempt(self, call: Call) -> Mapping[str, Any]:
        """Preempt a node and return it.

        If the request body is ``{warningSeconds}``, announce the preemption and preempt the node
        when this time has passed. A second call can preempt the node before then.
        """
        warning = call.json().get("warningSeconds", 0)
        if type(warning) not in (int, float) or not 0 <= warning <= LONGEST_WARNING_S:
            message = f"warningSeconds is {warning!r}, not 0 to {LONGEST_WARNING_S}"
            raise invalid("warningSeconds", message)
        node = self._node_of(call)
        if warning:
            with self._database.transaction():
                node = self._node_of(call)
                if node.state != "READY":
                    raise failed_precondition(f"{node.node_id} is {node.state}; it must be READY")
                self._nodes.announce_preemption(node.uid, time.time() + warning)
            self._wake()
            return write(node)
        try:
            self._lifecycle.preempt(node)
        except MachineError as error:
            message = f"{node.node_id} is preempted, but a machine cannot be deleted: {error}"
            raise ApiError(500, message) from error
        except StoppingError:
            pass  # the next server deletes the remaining machines of the preempted node
        current = self._nodes.find(node.uid)
        return write(current) if current else {}

    def _set_health(self, call: Call) -> Mapping[str, Any]:
        """Set the health that a node reports while it is READY, and return the node.

        The request body is ``{health, healthDescription, symptoms[]{symptomType, workerId,
        details}}``; an empty body makes the node HEALTHY.
        """
        condition = read(call.json(), CONDITION, "condition")
        with self._database.transaction():
            node = self._node_of(call)
            for symptom in condition.get("symptoms", ()):
                chosen_workers(node, [symptom.setdefault("workerId", "0")])
                symptom["createTime"] = timestamp()
            self._nodes.set_condition(node.uid, condition)
            return write(self._nodes.by_uid(node.uid))

    def _worker_faults(self, call: Call) -> Mapping[str, Any]:
        """Return the workers with faults: ``{workers[]{worker, zone, faults[]}}``."""
        workers = []
        for node in self._nodes.all():
            for worker in node.workers:
                if faults := list(self._machines.faults(worker.machine)):
                    name = f"{node.node_id}-w{worker.index}"
                    workers.append({"worker": name, "zone": node.zone, "faults": faults})
        return {"workers": workers}

    def _inject(self, call: Call) -> Mapping[str, Any]:
        """Inject a fault into workers; the request body is ``{workerIds[], fault}``.

        If ``workerIds`` is empty, all workers of the node get the fault.
        """
        body = call.json()
        fault = _fault(body.get("fault"))
        return self._for_workers(
            call, lambda _, worker: self._machines.inject(worker.machine, fault)
        )

    def _clear(self, call: Call) -> Mapping[str, Any]:
        """Clear a fault of workers; the request body is ``{workerIds[], fault}``.

        If ``workerIds`` is empty, the faults of all workers of the node are cleared. Without
        ``fault``, all kinds of faults are cleared.
        """
        name = call.json().get("fault")
        faults = MACHINE_FAULTS if name is None else (_fault(name),)

        def clear(_: Node, worker: Worker) -> None:
            for fault in faults:
                self._machines.clear(worker.machine, fault)

        return self._for_workers(call, clear)

    def _power_off(self, call: Call) -> Mapping[str, Any]:
        """Power off workers without a shutdown; the request body is ``{workerIds[]}``."""
        return self._for_workers(call, self._lifecycle.power_off)

    def _power_on(self, call: Call) -> Mapping[str, Any]:
        """Start booting powered-off workers; the request body is ``{workerIds[]}``."""
        return self._for_workers(call, self._lifecycle.boot)

    def _for_workers(self, call: Call, action: Callable[[Node, Worker], None]) -> Mapping[str, Any]:
        """Call ``action(node, worker)`` for each requested worker; return the workers' names."""
        node = self._node_of(call)
        if node.desired_state != RUN or not node.workers:
            raise failed_precondition(
                f"{node.node_id} is {node.state}, so its machines are not running. "
                "Choose a TPU whose machines are running"
            )
        workers = chosen_workers(node, call.json().get("workerIds", []))
        for worker in workers:
            try:
                action(node, worker)
            except MachineError as error:
                raise ApiError(400, str(error)) from error
        return {"workers": [f"{node.node_id}-w{worker.index}" for worker in workers]}

    def _node_of(self, call: Call) -> Node:
        """Return the node named in the call's path, which may omit the zone of a unique name."""
        node_id, zone = call.names["node"], call.names.get("zone")
        matches = [node for node in self._nodes.named(node_id) if zone in (None, node.zone)]
        if not matches:
            raise not_found(name_of("nodes", zone or "-", node_id))
        if len(matches) > 1:
            zones = ", ".join(node.zone for node in matches)
            raise failed_precondition(
                f"{node_id} is in several zones ({zones}). Use --zone, "
                f"or /_localcloud/locations/ZONE/nodes/{node_id}"
            )
        return matches[0]


def _fault(name: Any) -> MachineFault:
    if name not in MACHINE_FAULTS:
        raise invalid("fault", f"fault is {name!r}, not one of {', '.join(MACHINE_FAULTS)}")
    return name
