"""Creation, start, stop, preemption and deletion of the nodes' machines.

The order of database changes lets ``recover`` resume the work after a kill of the server at any
moment: a worker's row is stored before its machine is created and removed after the machine is
deleted. An operation's end is stored in the same transaction as its node's last change.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence

from localcloud.api.database import Database
from localcloud.api.errors import RPC_ABORTED, RPC_CANCELLED, RPC_INTERNAL, failed_precondition
from localcloud.api.jobs import Jobs
from localcloud.api.node_message import stored
from localcloud.api.node_resources import NodeResources
from localcloud.api.node_table import DELETED, RUN, Node, NodeTable, Worker
from localcloud.api.operation_table import Operation, OperationTable
from localcloud.api.versions import Version
from localcloud.machines.interface import MachineError, Machines, MachineSpec, SweepError

# How long a guest may take to shut down before its power is cut
# (https://cloud.google.com/compute/docs/shutdownscript). In an announced preemption, the power is
# cut at the announced time instead.
SHUTDOWN_S = 90.0
SWEEP_RETRY_S = 10.0
NOTICE_S = 1.0  # delay between a preemption's announcement in the metadata and the guest's shutdown
_POLL_S = 0.2
EMPTY = {"@type": "type.googleapis.com/google.protobuf.Empty"}
NODE_TYPE = Version.V2.type_url("Node")


class Lifecycle:
    """Runner of the nodes' state changes in the background, one job per node at a time."""

    def __init__(
        self,
        database: Database,
        machines: Machines,
        jobs: Jobs,
        boot_delay: Callable[[str, str], float],
        log: logging.Logger,
    ) -> None:
        """``boot_delay`` returns the boot delay, in seconds, to simulate for a worker in a zone."""
        self._database = database
        self._nodes = NodeTable(database)
        self._resources = NodeResources(database)
        self._operations = OperationTable(database)
        self._machines = machines
        self._jobs = jobs
        self._boot_delay = boot_delay
        self._log = log
        self._warned: set[tuple[int, float]] = set()
        self._delayed_boots: dict[str, tuple[float, Node]] = {}
        self._unknown_machines: Collection[str] = ()  # machines without a node, still to be deleted
        self._work = {
            "create": self._create,
            "delete": self._delete,
            "start": self._start,
            "stop": self._stop,
            "simulateMaintenanceEvent": self._maintain,
            "update": self._set_disks,
        }

    def begin(self, operation: Operation) -> None:
        """Run a stored operation in the background, according to its verb.

        For most verbs, the node must be in a certain state. ``create`` starts the machines of a
        CREATING node. ``delete`` deletes a DELETING node with its machines. ``stop`` and ``start``
        power the machines of a STOPPING or STARTING node off or on. ``update`` attaches the node's
        data disks. ``simulateMaintenanceEvent`` reboots the machines of the workers in
        ``detail["workers"]`` of a REPAIRING node.
        """
        self._jobs.begin(self._work[operation.verb], operation)

    def restart(self, node: Node) -> None:
        """Reboot the machines of a RESTARTING node in the background."""
        self._jobs.begin(self._reboot, node)

    def preempt(self, node: Node) -> None:
        """Preempt a READY or RESTARTING node: mark it PREEMPTED, then delete its machines.

        Raises HTTP 400 if the node is in another state, MachineError if a machine cannot be
        deleted, StoppingError if the server stops before all machines are deleted.
        """
        self._mark_preempted(node)
        try:
            with self._jobs.locked(node.uid):
                self._remove_machines(node)
        finally:
            self._jobs.changed()

    def preempt_later(self, node: Node) -> None:
        """Preempt a node like ``preempt``, but delete its machines in the background."""
        self._mark_preempted(node)
        self._jobs.begin(self._remove_machines, node)

    def preempt_due_nodes(self) -> float | None:
        """Preempt the nodes whose announced preemption is due; return the seconds to the next one.

        If a preemption is announced but not yet due, the node's guests start to shut down, as at
        Google (https://cloud.google.com/compute/docs/instances/preemptible#preemption-process).
        """
        waits = []
        for node in self._nodes.all():
            if node.preempt_at is None:
                continue
            wait = node.preempt_at - time.time()
            if wait > 0:
                waits.append(wait)
                if (warning := (node.uid, node.preempt_at)) not in self._warned:
                    self._warned.add(warning)
                    self._jobs.begin(self._warn, node)
            else:
                self.preempt_later(node)
        return min(waits, default=None)

    def _warn(self, node: Node) -> None:
        self._jobs.pause(NOTICE_S)
        current = self._nodes.find(node.uid)
        if current is not None and current.preempt_at is not None:
            for worker in current.workers:
                self._machines.shut_down(worker.machine)

    def power_off(self, node: Node, worker: Worker) -> None:
        """Cut the power of a worker's machine; keep the node's state. Raises MachineError."""
        with self._jobs.locked(node.uid):
            self._delayed_boots.pop(worker.machine, None)
            self._machines.power_off(worker.machine)

    def boot(self, node: Node, worker: Worker) -> None:
        """Boot a worker's machine in the background if its node should be running."""

        def boot_if_running(node: Node) -> None:
            current = self._nodes.find(node.uid)
            if current is not None and current.desired_state == RUN and worker in current.workers:
                self._boot(current, worker)

        self._jobs.begin(boot_if_running, node)

    def boot_late_machines(self) -> float | None:
        """Boot the machines whose delayed boot is due; return the seconds to the next one."""
        waits = []
        for machine, (due, node) in list(self._delayed_boots.items()):
            if (wait := due - time.monotonic()) > 0:
                waits.append(wait)
            elif self._delayed_boots.pop(machine, None):
                (worker,) = (
                    candidate for candidate in node.workers if candidate.machine == machine
                )
                self.boot(node, worker)
        return min(waits, default=None)

    def retry_sweep(self) -> float | None:
        """Retry deleting the machines without a node that ``recover`` could not delete.

        Returns the seconds until the next retry, or None if no such machine is left.
        """
        known_machines = set(self._nodes.machines())
        undeleted = []
        for name in self._unknown_machines:
            try:
                if name not in known_machines:
                    self._machines.delete(name)
                    self._log.info("deleted the unknown machine %s", name)
            except MachineError as error:
                self._log.warning("cannot delete a machine without a node, will retry: %s", error)
                undeleted.append(name)
        self._unknown_machines = undeleted
        return SWEEP_RETRY_S if undeleted else None

    def _mark_preempted(self, node: Node) -> None:
        if not self._nodes.move(
            node.uid, ["READY", "RESTARTING"], "PREEMPTED", desired_state=DELETED
        ):
            current = self._nodes.find(node.uid)
            raise failed_precondition(
                f"{node.node_id} is {current.state if current else 'deleted'} and can't be "
                "preempted: it must be READY or RESTARTING"
            )

    def recover(self) -> None:
        """Resume the work of an earlier server; call this once, before requests are served.

        Delete machines that belong to no node, resume interrupted operations, and boot machines
        that are off although their node should be running, for example after a reboot of the
        host. Operations and boots run in the background.
        """
        try:
            for name in self._machines.sweep(keep=self._nodes.machines()):
                self._log.info("deleted the unknown machine %s", name)
        except SweepError as error:  # retry_sweep() will try to delete these machines again
            self._unknown_machines = tuple(error.failures)
        except Exception:
            self._log.exception("cannot delete unknown machines; the next start tries again")
        resumed = set()
        for operation in self._operations.running():
            if operation.collection == "nodes":
                # An update boots no machines, so the loop below must boot the node's machines if
                # they are off.
                if operation.verb != "update":
                    resumed.add(operation.uid)
                self.begin(operation)
        for node in self._nodes.all():
            if node.uid in resumed:
                continue
            if node.state == "RESTARTING" and self._is_being_reset(node):
                self.restart(node)
            elif node.preempt_at is not None:
                continue  # preempt_due_nodes() will preempt the node
            elif node.desired_state == RUN and not self._all_alive(node):
                self._nodes.move(node.uid, ["READY", "TERMINATED"], "RESTARTING")
                self._jobs.begin(self._revive, node)
            elif node.state == "RESTARTING":
                self._nodes.move(node.uid, ["RESTARTING"], "READY")
            elif node.state == "PREEMPTED" and node.workers:
                self._jobs.begin(self._remove_machines, node)

    def _is_being_reset(self, node: Node) -> bool:
        reset = node.queued_resource and self._operations.of(node.queued_resource, "reset")
        return bool(reset and not reset.end_time)

    def _all_alive(self, node: Node) -> bool:
        return all(self._machines.alive(worker.machine) for worker in node.workers)

    def _create(self, operation: Operation) -> None:
        node = self._nodes.find(operation.uid)
        failures, leftovers = [], []
        if node is not None:
            failures = self._start_machines(node, while_in="CREATING", created_by=operation)
        cancelled = self._cancelled(operation)
        if node is not None and (failures or cancelled):
            leftovers = self._delete_machines(node.workers)
        with self._database.transaction():
            node = self._nodes.find(operation.uid)
            if node is None or node.state != "CREATING":
                message = "the node was deleted while it was being created"
                self._operations.fail(operation, RPC_ABORTED, message)
            elif leftovers:
                # Machines that could not be deleted still use addresses, so the node stays for now.
                last_error = "; ".join(failures + leftovers)
                self._nodes.move(
                    node.uid,
                    ["CREATING"],
                    "TERMINATED",
                    desired_state=DELETED,
                    last_error=last_error,
                )
                self._operations.fail(operation, RPC_INTERNAL, last_error)
            elif cancelled:
                self._nodes.remove(node.uid)
                self._operations.fail(operation, RPC_CANCELLED, "the creation was cancelled")
            elif failures:
                self._nodes.remove(node.uid)
                self._operations.fail(operation, RPC_INTERNAL, "; ".join(failures))
            else:
                self._nodes.move(node.uid, ["CREATING"], "READY")
                self.succeed(operation)

    def _cancelled(self, operation: Operation) -> bool:
        current = self._operations.get(operation.zone, operation.operation_id)
        return current is not None and current.cancel_requested

    def succeed(self, operation: Operation) -> None:
        """End an operation successfully; its response is its node."""
        message = stored(self._nodes.by_uid(operation.uid))
        self._operations.succeed(operation, {"@type": NODE_TYPE, **message})

    def _end(
        self, operation: Operation, state: str, new_state: str, failures: Sequence[str]
    ) -> None:
        """End an operation and change the state of its node.

        Without ``failures``, the node moves from ``state`` to ``new_state``. With failures, it
        moves to TERMINATED, and the operation fails. If the node is no longer in ``state``, it does
        not change, and the operation fails.
        """
        last_error = "; ".join(failures)
        with self._database.transaction():
            if failures:
                self._nodes.move(operation.uid, [state], "TERMINATED", last_error=last_error)
                self._operations.fail(operation, RPC_INTERNAL, last_error)
            elif (node := self._nodes.find(operation.uid)) is None or node.state != state:
                self._operations.fail(operation, RPC_ABORTED, "the node was deleted meanwhile")
            else:
                self._nodes.move(node.uid, [state], new_state)
                self.succeed(operation)

    def _start(self, operation: Operation) -> None:
        node = self._nodes.find(operation.uid)
        failures = self._start_machines(node, while_in="STARTING") if node else []
        self._end(operation, "STARTING", "READY", failures)

    def _stop(self, operation: Operation) -> None:
        node = self._nodes.find(operation.uid)
        failures = self._shut_down(node.workers, node, while_in="STOPPING") if node else []
        self._end(operation, "STOPPING", "STOPPED", failures)

    def _set_disks(self, operation: Operation) -> None:
        node = self._nodes.find(operation.uid)
        if node is None:
            self._operations.fail(operation, RPC_ABORTED, "the node was deleted meanwhile")
            return

        def set_disks(worker: Worker) -> None:
            if self._machines.alive(worker.machine):
                disks = self._resources.disks_of(node, worker.index)
                self._machines.set_disks(worker.machine, disks)

        failures = self._jobs.run_each(node.workers, set_disks, give_up=False)
        with self._database.transaction():
            if failures:
                self._operations.fail(operation, RPC_INTERNAL, "; ".join(failures))
            else:
                self.succeed(operation)

    def _maintain(self, operation: Operation) -> None:
        node = self._nodes.find(operation.uid)
        failures: list[str] = []
        if node is not None:
            workers = [
                worker for worker in node.workers if worker.index in operation.detail["workers"]
            ]
            failures = self._shut_down(workers, node, while_in="REPAIRING")
            failures = failures or self._start_machines(node, while_in="REPAIRING")
        self._end(operation, "REPAIRING", "READY", failures)

    def _reboot(self, node: Node) -> None:
        def switch_off(worker: Worker) -> None:
            if self._is_in(node, "RESTARTING"):
                self._machines.power_off(worker.machine)

        self._revive(node, self._jobs.run_each(node.workers, switch_off, give_up=True))

    def _revive(self, node: Node, failures: Collection[str] = ()) -> None:
        failures = failures or self._start_machines(node, while_in="RESTARTING")
        end, last_error = ("TERMINATED", "; ".join(failures)) if failures else ("READY", "")
        self._nodes.move(node.uid, ["RESTARTING"], end, last_error=last_error)

    def _start_machines(
        self, node: Node, while_in: str, created_by: Operation | None = None
    ) -> list[str]:
        def start(worker: Worker) -> None:
            if self._is_in(node, while_in) and not (created_by and self._cancelled(created_by)):
                delay_s = 0.0
                if not self._machines.alive(worker.machine):
                    delay_s = self._boot_delay(f"{node.node_id}-w{worker.index}", node.zone)
                if delay_s:
                    self._delayed_boots[worker.machine] = (time.monotonic() + delay_s, node)
                else:
                    self._boot(node, worker)

        return self._jobs.run_each(node.workers, start, give_up=True)

    def _boot(self, node: Node, worker: Worker) -> None:
        metadata = node.body.get("metadata", {})
        disks = self._resources.disks_of(node, worker.index)
        self._machines.start(
            MachineSpec(worker.machine, worker.address, metadata, worker.external, disks)
        )

    def _shut_down(self, workers: Sequence[Worker], node: Node, while_in: str) -> list[str]:
        """Shut down the guests, then power off their machines; return the error messages.

        A guest that is still running after SHUTDOWN_S is powered off as well. Gives up as soon as
        the node leaves the state ``while_in``.
        """

        def shut_down(worker: Worker) -> None:
            deadline = time.monotonic() + SHUTDOWN_S
            self._machines.shut_down(worker.machine)
            while (
                self._is_in(node, while_in)
                and self._machines.alive(worker.machine)
                and time.monotonic() < deadline
            ):
                self._jobs.pause(_POLL_S)
            if self._is_in(node, while_in):
                self._machines.power_off(worker.machine)

        return self._jobs.run_each(workers, shut_down, give_up=True)

    def _is_in(self, node: Node, state: str) -> bool:
        current = self._nodes.find(node.uid)
        return current is not None and current.state == state

    def _delete_machines(self, workers: Sequence[Worker]) -> list[str]:
        return self._jobs.run_each(
            workers, lambda worker: self._machines.delete(worker.machine), give_up=False
        )

    def _delete(self, operation: Operation) -> None:
        try:
            self._remove_machines(operation)
        except MachineError as error:
            with self._database.transaction():
                last_error = f"the machines could not be deleted: {error}"
                self._nodes.move(operation.uid, ["DELETING"], "TERMINATED", last_error=last_error)
                self._operations.fail(operation, RPC_INTERNAL, str(error))
            return
        with self._database.transaction():
            self._nodes.remove(operation.uid)
            self._operations.succeed(operation, EMPTY)

    def _remove_machines(self, subject: Node | Operation) -> None:
        """Delete the machines of a node, or of an operation's node, and free their addresses."""
        node = self._nodes.find(subject.uid)
        failures = self._delete_machines(node.workers) if node else []
        if failures:
            raise MachineError("; ".join(failures))
        self._nodes.release_workers(subject.uid)
