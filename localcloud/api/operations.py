"""API methods of ``projects.locations.operations``."""

from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import node_message, queued_resource_message
from localcloud.api.catalog import name_of
from localcloud.api.database import Database
from localcloud.api.errors import failed_precondition
from localcloud.api.operation_table import Operation, OperationTable
from localcloud.api.project import LOCATION, Project
from localcloud.api.routing import Call, Route
from localcloud.api.versions import Version

_CONVERTERS: Mapping[str, Callable[[Mapping[str, Any], Version], dict[str, Any]]] = {
    "Node": node_message.in_version,
    "QueuedResource": queued_resource_message.in_version,
}
FIELDS = ("done", "name", "metadata.target", "metadata.verb", "error.code")


def write(operation: Operation, version: Version = Version.V2) -> dict[str, Any]:
    """Return an operation as a message of an API version.

    ``apiVersion`` in the message is the version of the call that started the operation. ``done`` is
    present even if it is false, because SkyPilot requires it; other empty fields are omitted.
    """
    metadata = {
        "@type": version.type_url("OperationMetadata"),
        "createTime": operation.create_time,
        "target": operation.target,
        "verb": operation.verb,
        "apiVersion": str(operation.version),
    }
    message: dict[str, Any] = {
        "name": name_of("operations", operation.zone, operation.operation_id),
        "metadata": metadata,
        "done": bool(operation.end_time),
    }
    if operation.end_time:
        metadata["endTime"] = operation.end_time
    if operation.cancel_requested:
        metadata["cancelRequested"] = True
    if operation.error is not None:
        message["error"] = operation.error
    if operation.response is not None:
        message["response"] = _response(operation.response, version)
    return message


def _response(response: Mapping[str, Any], version: Version) -> Mapping[str, Any]:
    name = response["@type"].rpartition(".")[2]
    if name not in _CONVERTERS:
        return response
    return {"@type": version.type_url(name), **_CONVERTERS[name](response, version)}


class Operations:
    """Handlers of the operation methods."""

    def __init__(self, database: Database, project: Project) -> None:
        self._operations = OperationTable(database)
        self._project = project

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        collection = f"{LOCATION}/operations"
        resource = f"{collection}/{{operation}}"
        parameters = ("pageSize", "pageToken", "filter", "returnPartialSuccess")
        return (
            Route("operations.list", "GET", collection, self._list, parameters),
            Route("operations.get", "GET", resource, self._get),
            Route("operations.cancel", "POST", f"{resource}:cancel", self._cancel),
            Route("operations.delete", "DELETE", resource, self._delete),
        )

    def _list(self, call: Call) -> Mapping[str, Any]:
        return self._project.page(call, "operations", self._operations, write, FIELDS)

    def _get(self, call: Call) -> Mapping[str, Any]:
        return write(self._find(call), call.version)

    def _cancel(self, call: Call) -> Mapping[str, Any]:
        """Request cancellation of an operation.

        Only a node's creation is actually cancelled. A completed operation stays unchanged.
        """
        call.json()
        operation = self._find(call)
        if not operation.end_time:
            self._operations.cancel(operation)
        return {}

    def _delete(self, call: Call) -> Mapping[str, Any]:
        """Delete a completed operation; raise HTTP 400 if it is running."""
        operation = self._find(call)
        if not operation.end_time:
            raise failed_precondition(
                f"{operation.operation_id} is running: wait for its end, or cancel it"
            )
        self._operations.forget(operation)
        return {}

    def _find(self, call: Call) -> Operation:
        name = call.names["operation"]
        return self._project.find(call, "operations", self._operations, name)
