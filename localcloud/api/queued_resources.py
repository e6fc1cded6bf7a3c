"""API methods of ``projects.locations.queuedResources``; ``Queue`` creates the nodes."""

import time
from collections.abc import Mapping
from typing import Any

from localcloud.api.catalog import name_of
from localcloud.api.errors import already_exists, failed_precondition, invalid
from localcloud.api.methods import Methods
from localcloud.api.node_message import REQUEST_ID, checked_id
from localcloud.api.node_table import Node
from localcloud.api.project import LOCATION
from localcloud.api.queued_resource_message import read_request, requested_nodes, validity, write
from localcloud.api.queued_resource_table import USER
from localcloud.api.routing import Call, Route

# States in which a queued resource with nodes can be deleted without ``force``.
INACTIVE = ("ACCEPTED", "FAILED", "SUSPENDED")


class QueuedResources(Methods):
    """Handlers of the queued resource methods."""

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        collection = f"{LOCATION}/queuedResources"
        resource = f"{collection}/{{request}}"
        parameters = ("queuedResourceId", "requestId")
        page = ("pageSize", "pageToken")
        return (
            Route("queuedResources.list", "GET", collection, self._list, page),
            Route("queuedResources.create", "POST", collection, self._create, parameters),
            Route("queuedResources.get", "GET", resource, self._get),
            Route(
                "queuedResources.delete", "DELETE", resource, self._delete, ("force", "requestId")
            ),
            Route("queuedResources.reset", "POST", f"{resource}:reset", self._reset),
        )

    def _list(self, call: Call) -> Mapping[str, Any]:
        return self._project.page(call, "queuedResources", self._requests, write)

    def _get(self, call: Call) -> Mapping[str, Any]:
        return write(self._find_request(call), call.version)

    def _create(self, call: Call) -> Mapping[str, Any]:
        """Store a queued resource in state CREATING; return the running operation.

        The operation is done when ``Queue`` has moved the queued resource to its next state.
        """
        zone = self._project.zone_of(call.names)
        field = "queuedResourceId"
        request_name = checked_id(field, call.query.get(field, ""), REQUEST_ID)
        body = read_request(call.json(), zone, call.version)
        valid = validity(body, time.time())
        name = name_of("queuedResources", zone, request_name)
        with self._database.transaction():
            if earlier := self._earlier(call, "create", name):
                return self._answer(call, earlier)
            if self._requests.get(zone, request_name):
                raise already_exists(name)
            requested = requested_nodes(body, zone, request_name)
            for node_id, node in requested:
                if self._nodes.get(zone, node_id):
                    raise already_exists(name_of("nodes", zone, node_id))
                self._resources.resolved(node, zone)
            self._quota.check(zone, [node for _, node in requested])
            request = self._requests.add(zone, request_name, valid, body)
            operation = self._add(call, "create", name, request.uid)
        self._wake()
        return self._answer(call, operation)

    def _delete(self, call: Call) -> Mapping[str, Any]:
        """Start deleting a queued resource with its nodes; return the running operation."""
        force, zone = _flag(call, "force"), self._project.zone_of(call.names)
        name = name_of("queuedResources", zone, call.names["request"])
        with self._database.transaction():
            if earlier := self._earlier(call, "delete", name):
                return self._answer(call, earlier)
            request = self._find_request(call)
            if request.state == "DELETING":
                raise failed_precondition(f"{name} is already being deleted: wait for its end")
            nodes = self._nodes.of_queued_resource(request.uid)
            if nodes and request.state not in INACTIVE and not force:
                raise failed_precondition(
                    f"{name} is {request.state} and has nodes ({_names(nodes)}): "
                    "delete those first, or use force"
                )
            self._requests.move(request, "DELETING", USER)
            operation = self._add(call, "delete", name, request.uid)
        self._wake()
        return self._answer(call, operation)

    def _reset(self, call: Call) -> Mapping[str, Any]:
        """Start rebooting the machines of an ACTIVE queued resource; return the operation."""
        call.json()
        with self._database.transaction():
            request = self._find_request(call)
            nodes = self._nodes.of_queued_resource(request.uid)
            if request.state != "ACTIVE" or any(node.state != "READY" for node in nodes):
                raise failed_precondition(
                    f"{request.name} is {request.state} with {_names(nodes) or 'no nodes'}: only "
                    "an ACTIVE queued resource whose nodes are all READY can be reset"
                )
            for node in nodes:
                self._nodes.move(node.uid, ["READY"], "RESTARTING")
            operation = self._add(call, "reset", request.name, request.uid)
        for node in nodes:
            self._lifecycle.restart(node)
        return self._answer(call, operation)


def _names(nodes: list[Node]) -> str:
    return ", ".join(f"{node.node_id} {node.state}" for node in nodes)


def _flag(call: Call, name: str) -> bool:
    text = call.query.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise invalid(name, f"{name} is '{text}', not true or false")
    return text in ("true", "1")
