"""The queue of queued resources: creates nodes when there is capacity, and updates states.

The reconcile loop runs the queue after every change. All state is in the database, so that a killed
server loses nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from localcloud.api.catalog import name_of
from localcloud.api.clock import parse_timestamp, timestamp
from localcloud.api.database import Database
from localcloud.api.errors import RPC_DEADLINE_EXCEEDED, RPC_INTERNAL, ApiError
from localcloud.api.faults import Faults
from localcloud.api.lifecycle import EMPTY, Lifecycle
from localcloud.api.node_message import accelerator_of
from localcloud.api.node_resources import NodeResources
from localcloud.api.node_table import DELETABLE, DELETED, NoCapacityError, Node, NodeTable
from localcloud.api.operation_table import Operation, OperationTable
from localcloud.api.queued_resource_message import requested_nodes, run_end, stored
from localcloud.api.queued_resource_table import (
    SERVICE,
    USER,
    QueuedResource,
    QueuedResourceTable,
)
from localcloud.api.versions import Version
from localcloud.machines.interface import Machines

TYPE = Version.V2.type_url("QueuedResource")
# Seconds between capacity checks. The queue must poll, because a fault that simulates a lack of
# capacity does not wake the reconcile loop when its time is over.
RETRY_S = 1.0


class Queue:
    """State machine of the queued resources; call ``reconcile`` from one thread only."""

    def __init__(
        self,
        database: Database,
        machines: Machines,
        lifecycle: Lifecycle,
        faults: Faults,
    ) -> None:
        self._database = database
        self._requests = QueuedResourceTable(database)
        self._nodes = NodeTable(database)
        self._resources = NodeResources(database)
        self._operations = OperationTable(database)
        self._machines = machines
        self._lifecycle = lifecycle
        self._faults = faults
        self._steps: Mapping[str, Callable[[QueuedResource], bool]] = {
            "CREATING": self._enqueue,
            "ACCEPTED": self._wait_for_start,
            "WAITING_FOR_RESOURCES": self._allocate,
            "PROVISIONING": self._follow_creation,
            "ACTIVE": self._follow_nodes,
            "SUSPENDING": self._suspend,
            "DELETING": self._delete,
        }

    def reconcile(self) -> float | None:
        """Advance every queued resource as far as possible.

        Returns the seconds until the next state change is due, or None if none is scheduled.
        """
        waits = []
        for request in self._requests.all():
            current: QueuedResource | None = request
            while (
                current is not None and (step := self._steps.get(current.state)) and step(current)
            ):
                current = self._requests.find(request.uid)
            if current is not None:
                waits += self._seconds_to_next_step(current)
        return min(waits, default=None)

    def _seconds_to_next_step(self, request: QueuedResource) -> list[float]:
        if request.state == "ACTIVE":
            nodes = self._nodes.of_queued_resource(request.uid)
            return [max(0.0, end - time.time()) for end in _termination_times(nodes)]
        if request.state == "ACCEPTED" and request.valid_from:
            return [max(0.0, request.valid_from - time.time())]
        if request.state == "WAITING_FOR_RESOURCES":
            valid_until = request.valid_until
            return [min(RETRY_S, max(0.0, valid_until - time.time()) if valid_until else RETRY_S)]
        return []

    def _enqueue(self, request: QueuedResource) -> bool:
        is_early = request.valid_from is not None and request.valid_from > time.time()
        with self._database.transaction():
            self._requests.move(request, "ACCEPTED" if is_early else "WAITING_FOR_RESOURCES")
            self._succeed(request, "create")
        return True

    def _wait_for_start(self, request: QueuedResource) -> bool:
        if self._expired(request):
            return True
        if request.valid_from is not None and request.valid_from > time.time():
            return False
        return self._requests.move(request, "WAITING_FOR_RESOURCES")

    def _expired(self, request: QueuedResource) -> bool:
        if request.valid_until is None or request.valid_until > time.time():
            return False
        expiry = timestamp(request.valid_until)
        message = f"no capacity was available before the request expired at {expiry}"
        return self._fail(request, RPC_DEADLINE_EXCEEDED, message)

    def _fail(self, request: QueuedResource, code: int, message: str) -> bool:
        return self._requests.move(request, "FAILED", error={"code": code, "message": message})

    def _allocate(self, request: QueuedResource) -> bool:
        if self._expired(request):
            return True
        requested = self._requested_nodes(request)
        if any(
            self._faults.shortage(request.zone, node["acceleratorType"]) for _, node in requested
        ):
            return False
        operations = []
        try:
            with self._database.transaction():
                for node_id, body in requested:
                    operations.append(self._add(request, node_id, body))
                self._requests.move(request, "PROVISIONING")
        except NoCapacityError:
            return False
        except ApiError as error:
            return self._fail(request, error.rpc_code, error.message)
        for operation in operations:
            self._lifecycle.begin(operation)
        return True

    def _requested_nodes(self, request: QueuedResource) -> list[tuple[str, dict[str, Any]]]:
        return requested_nodes(request.body, request.zone, request.request_name)

    def _add(
        self, request: QueuedResource, node_id: str, requested_node: Mapping[str, Any]
    ) -> Operation:
        zone = request.zone
        body = self._resources.resolved(requested_node, zone)
        body["queuedResource"] = request.name
        if (end := run_end(request.body, time.time())) is not None:
            termination = {"terminationTimestamp": timestamp(end)}
            body["schedulingConfig"] = {**body["schedulingConfig"], **termination}
        node = self._nodes.add(
            zone,
            node_id,
            body,
            accelerator_of(body).workers,
            self._machines.addresses(),
            request.uid,
            latest_released_first=self._faults.reuses_addresses(zone),
        )
        return self._operations.add(zone, node.uid, "create", node.name)

    def _follow_creation(self, request: QueuedResource) -> bool:
        nodes = self._nodes.of_queued_resource(request.uid)
        if request.error is not None:
            self._delete_nodes(nodes, since=request.create_time)
            is_over = all(self._deletion_error(node, request.create_time) for node in nodes)
            return is_over and self._requests.move(request, "FAILED", error=request.error)
        requested = self._requested_nodes(request)
        lost = {node_id for node_id, _ in requested} - {
            node.node_id for node in nodes if node.desired_state != DELETED
        }
        if any(node.state == "PREEMPTED" for node in nodes):
            return self._requests.move(request, "SUSPENDING")
        if lost:
            reason = self._reason_for_missing_node(request.zone, min(lost))
            message = f"not all nodes could be created: {reason}"
            error = {"code": RPC_INTERNAL, "message": message}
            return self._requests.move(request, "PROVISIONING", error=error)
        if all(node.state == "READY" for node in nodes):
            return self._requests.move(request, "ACTIVE")
        return False

    def _reason_for_missing_node(self, zone: str, node_id: str) -> str:
        error = self._operations.last_error(zone, name_of("nodes", zone, node_id))
        return error or f"{node_id} was deleted"

    def _follow_nodes(self, request: QueuedResource) -> bool:
        # Read the nodes and finish the reset operation in one transaction. Otherwise, a reset that
        # begins in between would be marked as finished at once.
        with self._database.transaction():
            nodes = self._nodes.of_queued_resource(request.uid)
            states = {node.state for node in nodes}
            if "RESTARTING" not in states:
                self._succeed(request, "reset")
        if "PREEMPTED" in states or any(end <= time.time() for end in _termination_times(nodes)):
            return self._requests.move(request, "SUSPENDING", SERVICE)
        if states <= {"DELETING"}:
            return self._requests.move(request, "SUSPENDING", USER)
        return False

    def _suspend(self, request: QueuedResource) -> bool:
        """Move the queued resource to SUSPENDED once its nodes have no machines.

        If the service started the suspension (after a preemption or at the end of the run
        duration), preempt the remaining nodes. Returns whether the state changed.
        """
        nodes = self._nodes.of_queued_resource(request.uid)
        if request.initiator == SERVICE:
            for node in nodes:
                # Skip a node whose state has just changed: the next reconcile handles it.
                with suppress(ApiError):
                    if node.state in ("READY", "RESTARTING"):
                        self._lifecycle.preempt_later(node)
        is_over = not any(node.workers or node.state == "DELETING" for node in nodes)
        self._fail_operation(request, "reset", "the nodes were deleted")
        return is_over and self._requests.move(request, "SUSPENDED", request.initiator)

    def _delete(self, request: QueuedResource) -> bool:
        operation = self._operations.of(request.uid, "delete")
        nodes = self._nodes.of_queued_resource(request.uid)
        if operation is None:
            return False
        self._fail_operation(request, "create", "the request was deleted")
        self._fail_operation(request, "reset", "the request was deleted")
        for node in nodes:
            if last_error := self._deletion_error(node, operation.create_time):
                with self._database.transaction():
                    self._operations.fail(operation, RPC_INTERNAL, last_error)
                    return self._requests.move(request, "SUSPENDED", SERVICE)
        self._delete_nodes(nodes, since=operation.create_time)
        if nodes:
            return False
        with self._database.transaction():
            self._requests.remove(request.uid)
            self._operations.succeed(operation, EMPTY)
        return True

    def _deletion_error(self, node: Node, since: str) -> str:
        """Return the error of the node's newest deletion; "" if there is none.

        Deletions that did not begin after the time ``since`` are ignored.
        """
        deletion = self._operations.of(node.uid, "delete")
        error = deletion.error if deletion and deletion.create_time > since else None
        return str(error["message"]) if error else ""

    def _delete_nodes(self, nodes: Sequence[Node], since: str) -> None:
        """Start deleting each deletable node, except nodes that have a ``_deletion_error``."""
        for node in nodes:
            with self._database.transaction():
                if self._deletion_error(node, since):
                    continue
                if not self._nodes.move(node.uid, DELETABLE, "DELETING", desired_state=DELETED):
                    continue
                operation = self._operations.add(node.zone, node.uid, "delete", node.name)
            self._lifecycle.begin(operation)

    def _succeed(self, request: QueuedResource, verb: str) -> None:
        operation = self._operations.of(request.uid, verb)
        current = self._requests.find(request.uid)
        if operation and current and not operation.end_time:
            message = stored(current)
            self._operations.succeed(operation, {"@type": TYPE, **message})

    def _fail_operation(self, request: QueuedResource, verb: str, message: str) -> None:
        operation = self._operations.of(request.uid, verb)
        if operation and not operation.end_time:
            self._operations.fail(operation, RPC_INTERNAL, message)


def _termination_times(nodes: Sequence[Node]) -> list[float]:
    """Return the termination times of nodes with a limited run duration (seconds since 1970)."""
    times = [node.body["schedulingConfig"].get("terminationTimestamp") for node in nodes]
    return [parse_timestamp(text) for text in times if text]
