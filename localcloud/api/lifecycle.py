"""Makes true what the nodes' table says: machines come, go and come back.

Whatever is to happen is written down before it is done: a worker's row before its machine is
made, its removal after the machine is gone, an operation's end with the node's last change. So a
process killed at any moment leaves a table from which ``recover`` goes on.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from localcloud.api.database import Database
from localcloud.api.errors import RPC_ABORTED, RPC_INTERNAL, failed_precondition
from localcloud.api.node_message import write
from localcloud.api.node_table import GONE, RUN, Node, NodeTable, Worker
from localcloud.api.operation_table import Operation, OperationTable
from localcloud.machines.seam import MachineError, Machines, MachineSpec

EMPTY = {"@type": "type.googleapis.com/google.protobuf.Empty"}
NODE_TYPE = "type.googleapis.com/google.cloud.tpu.v2.Node"


class _StoppingError(Exception):
    """The server is stopping: what is unfinished stays written down for the next one."""


class Lifecycle:
    """Does a node's work in the background, one job a node at a time.

    ``hands`` bounds how many machines of the whole cloud are worked on at once.
    """

    def __init__(
        self,
        database: Database,
        machines: Machines,
        parent: str,
        log: logging.Logger,
        hands: int = 4,
    ) -> None:
        self._database = database
        self._nodes = NodeTable(database)
        self._operations = OperationTable(database)
        self._machines = machines
        self._parent = parent
        self._log = log
        self._hand_count = hands
        self._hands = threading.Semaphore(hands)
        self._stopping = threading.Event()
        self._jobs: set[threading.Thread] = set()
        self._guard = threading.Lock()
        self._node_locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)

    def create(self, operation: Operation) -> None:
        """Start the machines of a stored CREATING node in the background; then it is READY."""
        self._begin(self._create, operation)

    def delete(self, operation: Operation) -> None:
        """Remove a stored DELETING node with its machines in the background."""
        self._begin(self._delete, operation)

    def preempt(self, node: Node) -> None:
        """Take a running node away: PREEMPTED at once, its machines gone on return.

        Raises ApiError (400) if it isn't READY, MachineError if a machine can't be removed.
        """
        if not self._nodes.move(node.uid, ["READY", "RESTARTING"], "PREEMPTED", wanted=GONE):
            raise failed_precondition(
                f"{node.node_id} is {self._nodes.by_uid(node.uid).state}: "
                "only a node that is READY can be preempted"
            )
        with self._alone(node.uid):
            self._remove_machines(node.uid)

    def recover(self) -> None:
        """Take up what an earlier server left: call it once, before requests are served.

        Machines that no node knows are removed; creations and deletions that were cut short go
        on; a node that should run and has a dead machine is started again, since the computer's
        own reboot is no preemption. The slow part happens in the background.
        """
        for name in self._machines.sweep(keep=self._nodes.machines()):
            self._log.info("removed the unknown machine %s", name)
        taken_up = set()
        for operation in self._operations.under_way():
            taken_up.add(operation.uid)
            self._begin(self._create if operation.verb == "create" else self._delete, operation)
        for node in self._nodes.everything():
            if node.uid in taken_up:
                continue
            if node.wanted == RUN and not self._whole(node):
                self._nodes.move(node.uid, ["READY", "TERMINATED"], "RESTARTING")
                self._begin(self._restart, node)
            elif node.state == "RESTARTING":
                self._nodes.move(node.uid, ["RESTARTING"], "READY")
            elif node.state == "PREEMPTED" and node.workers:
                self._begin(self._finish_preemption, node)

    def stop(self, patience: float) -> bool:
        """Begin no new work on machines; wait up to ``patience`` seconds for what is under way.

        Tells whether everything under way came to its end or to a resting point.
        """
        self._stopping.set()
        with self._guard:
            jobs = tuple(self._jobs)
        for job in jobs:
            job.join(patience / max(1, len(jobs)))
        return not any(job.is_alive() for job in jobs)

    def _begin(self, work: Callable, subject: Operation | Node) -> None:
        def job() -> None:
            try:
                with self._alone(subject.uid):
                    work(subject)
            except _StoppingError:
                self._log.info("left for the next start: %s", subject)
            except Exception:
                self._log.exception("a job failed: %s", subject)
            finally:
                with self._guard:
                    self._jobs.discard(threading.current_thread())

        thread = threading.Thread(target=job, name=f"{work.__name__}-{subject.uid}", daemon=True)
        with self._guard:
            self._jobs.add(thread)
        thread.start()

    @contextmanager
    def _alone(self, uid: int) -> Iterator[None]:
        with self._guard:
            lock = self._node_locks[uid]
        with lock:
            yield

    def _whole(self, node: Node) -> bool:
        return all(self._machines.alive(worker.machine) for worker in node.workers)

    def _create(self, operation: Operation) -> None:
        node = self._nodes.find(operation.uid)
        failures, leftovers = [], []
        if node is not None:
            failures = self._start_machines(node, while_in="CREATING")
        if node is not None and failures:
            leftovers = self._delete_machines(node.workers)
        with self._database.transaction():
            node = self._nodes.find(operation.uid)
            if node is None or node.state != "CREATING":
                message = "the node was deleted while it was being created"
                self._operations.fail(operation, RPC_ABORTED, message)
            elif leftovers:
                # Its addresses are still in use: the node stays until a delete succeeds.
                trouble = "; ".join(failures + leftovers)
                self._nodes.move(node.uid, ["CREATING"], "TERMINATED", wanted=GONE, trouble=trouble)
                self._operations.fail(operation, RPC_INTERNAL, trouble)
            elif failures:
                self._nodes.remove(node.uid)
                self._operations.fail(operation, RPC_INTERNAL, "; ".join(failures))
            else:
                self._nodes.move(node.uid, ["CREATING"], "READY")
                message = write(self._nodes.by_uid(node.uid), self._parent)
                self._operations.succeed(operation, {"@type": NODE_TYPE, **message})

    def _restart(self, node: Node) -> None:
        failures = self._start_machines(node, while_in="RESTARTING")
        end, trouble = ("TERMINATED", "; ".join(failures)) if failures else ("READY", "")
        self._nodes.move(node.uid, ["RESTARTING"], end, trouble=trouble)

    def _start_machines(self, node: Node, while_in: str) -> list[str]:
        metadata = node.body.get("metadata", {})

        def start(worker: Worker) -> None:
            now = self._nodes.find(node.uid)
            if now is not None and now.state == while_in:
                self._machines.start(MachineSpec(worker.machine, worker.address, metadata))

        return self._each(node.workers, start, give_up=True)

    def _delete_machines(self, workers: Sequence[Worker]) -> list[str]:
        return self._each(workers, lambda w: self._machines.delete(w.machine), give_up=False)

    def _delete(self, operation: Operation) -> None:
        try:
            self._remove_machines(operation.uid)
        except MachineError as error:
            with self._database.transaction():
                trouble = f"could not be deleted: {error}"
                self._nodes.move(operation.uid, ["DELETING"], "TERMINATED", trouble=trouble)
                self._operations.fail(operation, RPC_INTERNAL, str(error))
            return
        with self._database.transaction():
            self._nodes.remove(operation.uid)
            self._operations.succeed(operation, EMPTY)

    def _finish_preemption(self, node: Node) -> None:
        self._remove_machines(node.uid)

    def _remove_machines(self, uid: int) -> None:
        node = self._nodes.find(uid)
        failures = self._delete_machines(node.workers) if node else []
        if failures:
            raise MachineError("; ".join(failures))
        self._nodes.release_workers(uid)

    def _each(
        self, workers: Sequence[Worker], verb: Callable[[Worker], None], *, give_up: bool
    ) -> list[str]:
        """Do one thing to each worker's machine, several at once; give what went wrong, by name.

        With ``give_up`` no further machine is begun after a failure. Raises _StoppingError if
        the server stops before all were begun.
        """
        waiting = list(reversed(workers))
        failures: list[str] = []

        def hand() -> None:
            while not (self._stopping.is_set() or (give_up and failures)):
                with self._hands:
                    try:
                        worker = waiting.pop()
                    except IndexError:
                        return
                    try:
                        verb(worker)
                    except MachineError as error:
                        failures.append(str(error))
                    except Exception as error:
                        self._log.exception("machine %s", worker.machine)
                        failures.append(f"{worker.machine}: {type(error).__name__}: {error}")

        count = min(self._hand_count, len(workers))
        hands = [threading.Thread(target=hand, daemon=True) for _ in range(count)]
        for thread in hands:
            thread.start()
        for thread in hands:
            thread.join()
        if waiting and not failures:
            raise _StoppingError
        return failures
