"""API methods of ``projects.locations.queuedResources``."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api.clock import timestamp
from localcloud.api.data_disks import DataDisks
from localcloud.api.database import Database
from localcloud.api.errors import already_exists, failed_precondition, invalid, not_found
from localcloud.api.lifecycle import Lifecycle
from localcloud.api.node_networks import NodeNetworks
from localcloud.api.node_request import checked_request_name
from localcloud.api.node_table import Node, NodeTable
from localcloud.api.operation_table import OperationTable
from localcloud.api.operations import write as write_operation
from localcloud.api.paging import requested_page
from localcloud.api.project import LOCATION, Project
from localcloud.api.queued_resource_message import read_request, validity, wanted_nodes, write
from localcloud.api.queued_resource_table import USER, QueuedResource, QueuedResourceTable
from localcloud.api.quota import Quota
from localcloud.api.request_ids import RequestIds
from localcloud.api.routing import Call, Route

# States in which a queued resource with nodes can be deleted without ``force``.
DEAD = ("ACCEPTED", "FAILED", "SUSPENDED")


class QueuedResources:
    """Handlers of the queued resource methods; ``Queue`` creates the nodes.

    ``changed`` is called after each change, to wake the queue.
    """

    def __init__(
        self,
        database: Database,
        project: Project,
        lifecycle: Lifecycle,
        quota: Quota,
        changed: Callable[[], None],
    ) -> None:
        self._database = database
        self._requests = QueuedResourceTable(database)
        self._nodes = NodeTable(database)
        self._disks = DataDisks(database)
        self._networks = NodeNetworks(database)
        self._operations = OperationTable(database)
        self._ids = RequestIds(database)
        self._project = project
        self._lifecycle = lifecycle
        self._quota = quota
        self._changed = changed

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        all_of_them = f"{LOCATION}/queuedResources"
        one = f"{all_of_them}/{{request}}"
        named = ("queuedResourceId", "requestId")
        page = ("pageSize", "pageToken")
        return (
            Route("queuedResources.list", "GET", all_of_them, self.list, page),
            Route("queuedResources.create", "POST", all_of_them, self.create, named),
            Route("queuedResources.get", "GET", one, self.get),
            Route("queuedResources.delete", "DELETE", one, self.delete, ("force", "requestId")),
            Route("queuedResources.reset", "POST", f"{one}:reset", self.reset),
        )

    def list(self, call: Call) -> Mapping[str, Any]:
        """Return a page of the queued resources of one zone, or of all zones for the zone ``-``."""
        scope = self._project.many(call.names)
        page = requested_page(f"queuedResources in {call.names['zone']}", call.query)
        found = self._requests.page(scope.zones, page.after, page.size + 1)
        shown, token = page.cut(found, lambda request: (request.zone, request.request_name))
        items = [write(request, self._project.parent, call.version) for request in shown]
        return self._project.answer("queuedResources", items, scope, token)

    def get(self, call: Call) -> Mapping[str, Any]:
        """Return the queued resource in the call's path."""
        return write(self._find(call), self._project.parent, call.version)

    def create(self, call: Call) -> Mapping[str, Any]:
        """Store a queued resource; return the operation, which ends when the queue accepts it."""
        zone, parent = self._project.one(call.names), self._project.parent
        request_name = checked_request_name(
            "queuedResourceId", call.query.get("queuedResourceId", "")
        )
        body = read_request(call.json(), parent, zone, call.version)
        valid = validity(body, time.time())
        name = self._name(zone, request_name)
        request_id = call.query.get("requestId", "")
        with self._database.transaction():
            operation = self._ids.earlier("create", zone, request_id, name)
            if operation is not None:
                return write_operation(operation, parent, call.version)
            if self._requests.get(zone, request_name):
                raise already_exists(name)
            wanted = wanted_nodes(body, parent, zone, request_name)
            for node in wanted:
                if self._nodes.get(zone, node.node_id):
                    raise already_exists(f"{parent}/locations/{zone}/nodes/{node.node_id}")
                self._networks.resolved(node.request.body, parent, zone)
                disks = node.request.body.get("dataDisks", ())
                self._disks.check(disks, parent, zone, node.request.accelerator.workers)
            self._quota.check(zone, [node.request for node in wanted])
            request = self._requests.add(name, zone, request_name, timestamp(), valid, body)
            operation = self._operations.add(
                zone, request.uid, "create", name, version=call.version
            )
            self._ids.remember("create", request_id, operation)
        self._changed()
        return write_operation(operation, parent, call.version)

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Start deleting a queued resource; return the running operation.

        Its nodes are deleted too, which requires ``force`` unless the state is one of DEAD.
        """
        force = _flag(call, "force")
        zone = self._project.one(call.names)
        name, request_id = self._name(zone, call.names["request"]), call.query.get("requestId", "")
        with self._database.transaction():
            operation = self._ids.earlier("delete", zone, request_id, name)
            if operation is not None:
                return write_operation(operation, self._project.parent, call.version)
            request = self._find(call)
            if request.state == "DELETING":
                raise failed_precondition(f"{name} is being deleted already")
            nodes = self._nodes.of_queued_resource(request.uid)
            if nodes and request.state not in DEAD and not force:
                raise failed_precondition(
                    f"{name} is {request.state} and has nodes ({_names(nodes)}): "
                    "delete those first, or use force"
                )
            self._requests.move(request, "DELETING", USER)
            operation = self._operations.add(
                zone, request.uid, "delete", name, version=call.version
            )
            self._ids.remember("delete", request_id, operation)
        self._changed()
        return write_operation(operation, self._project.parent, call.version)

    def reset(self, call: Call) -> Mapping[str, Any]:
        """Start rebooting the machines of an ACTIVE queued resource; return the operation."""
        call.json()
        with self._database.transaction():
            request = self._find(call)
            nodes = self._nodes.of_queued_resource(request.uid)
            name = self._name(request.zone, request.request_name)
            ready = [node for node in nodes if node.state == "READY"]
            if request.state != "ACTIVE" or len(ready) < len(nodes):
                raise failed_precondition(
                    f"{name} is {request.state} with {_names(nodes) or 'no nodes'}: only an ACTIVE "
                    "queued resource whose nodes are all READY can be reset"
                )
            for node in nodes:
                self._nodes.move(node.uid, ["READY"], "RESTARTING")
            operation = self._operations.add(
                request.zone, request.uid, "reset", name, version=call.version
            )
        for node in nodes:
            self._lifecycle.restart(node)
        return write_operation(operation, self._project.parent, call.version)

    def _name(self, zone: str, request_name: str) -> str:
        return f"{self._project.parent}/locations/{zone}/queuedResources/{request_name}"

    def _find(self, call: Call) -> QueuedResource:
        zone, request_name = self._project.one(call.names), call.names["request"]
        request = self._requests.get(zone, request_name)
        if request is None:
            raise not_found(self._name(zone, request_name))
        return request


def _names(nodes: list[Node]) -> str:
    return ", ".join(f"{node.node_id} {node.state}" for node in nodes)


def _flag(call: Call, name: str) -> bool:
    text = call.query.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise invalid(name, f"{name} is '{text}', not true or false")
    return text in ("true", "1")
