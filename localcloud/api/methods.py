"""Base class of the handlers of API methods: database tables, services and common helpers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api.database import Database
from localcloud.api.errors import ApiError, invalid
from localcloud.api.faults import Faults
from localcloud.api.lifecycle import Lifecycle
from localcloud.api.node_resources import NodeResources
from localcloud.api.node_table import Node, NodeTable, Worker
from localcloud.api.operation_table import Operation, OperationTable
from localcloud.api.operations import write
from localcloud.api.project import Project
from localcloud.api.queued_resource_table import QueuedResource, QueuedResourceTable
from localcloud.api.quota import Quota
from localcloud.api.routing import Call
from localcloud.machines.interface import Machines


@dataclass
class Methods:
    """Base class of the handlers of API methods.

    After a change of a queued resource, handlers call ``_wake`` to run the reconcile loop at once.
    """

    _database: Database
    _project: Project
    _machines: Machines
    _faults: Faults
    _lifecycle: Lifecycle
    _wake: Callable[[], None]

    def __post_init__(self) -> None:
        self._quota = Quota(self._database, self._faults)
        self._nodes = NodeTable(self._database)
        self._operations = OperationTable(self._database)
        self._requests = QueuedResourceTable(self._database)
        self._resources = NodeResources(self._database)

    def _find_node(self, call: Call) -> Node:
        """Return the node in the call's path; raise HTTP 404 if it does not exist."""
        return self._project.find(call, "nodes", self._nodes, call.names["node"])

    def _find_request(self, call: Call) -> QueuedResource:
        """Return the queued resource in the call's path; raise HTTP 404 if it does not exist."""
        return self._project.find(call, "queuedResources", self._requests, call.names["request"])

    def _earlier(self, call: Call, verb: str, target: str) -> Operation | None:
        """Return the operation that an earlier call with this ``requestId`` started, or None."""
        request_id = call.query.get("requestId", "")
        return self._operations.earlier(verb, call.names["zone"], request_id, target)

    def _add(
        self,
        call: Call,
        verb: str,
        target: str,
        uid: int,
        detail: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Store the operation that this call starts; see ``OperationTable.add`` for arguments."""
        return self._operations.add(
            call.names["zone"],
            uid,
            verb,
            target,
            detail,
            version=call.version,
            request_id=call.query.get("requestId", ""),
        )

    def _answer(self, call: Call, operation: Operation) -> Mapping[str, Any]:
        return write(operation, call.version)

    def _begin(self, call: Call, operation: Operation) -> Mapping[str, Any]:
        """Start an operation in the background; return the operation as a message."""
        self._lifecycle.begin(operation)
        return self._answer(call, operation)


def chosen_workers(node: Node, ids: Any) -> tuple[Worker, ...]:
    """Return the workers with these ids, or all if ids is empty; raise HTTP 400 for a wrong id."""
    if not isinstance(ids, list):
        raise invalid("workerIds", f"workerIds is {ids!r}, not a list")
    # gcloud sends one empty id to select all workers.
    if ids in ([], [""]):
        return node.workers
    by_id = {str(worker.index): worker for worker in node.workers}
    for worker_id in ids:
        if not isinstance(worker_id, str) or worker_id not in by_id:
            known_ids = ", ".join(by_id)
            raise ApiError(400, f"{node.node_id} has no worker {worker_id!r}; it has {known_ids}")
    return tuple(by_id[worker_id] for worker_id in ids)
