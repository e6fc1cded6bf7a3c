"""The methods of ``projects.locations.operations``."""

from collections.abc import Mapping
from typing import Any

from localcloud.api.database import Database
from localcloud.api.errors import failed_precondition, not_found
from localcloud.api.operation_table import Operation, OperationTable
from localcloud.api.paging import requested_page
from localcloud.api.project import LOCATION, Project
from localcloud.api.routing import Call, Route
from localcloud.api.selection import chosen

_METADATA = "type.googleapis.com/google.cloud.tpu.v2.OperationMetadata"
FIELDS = ("done", "name", "metadata.target", "metadata.verb", "error.code")


def write(operation: Operation, parent: str) -> dict[str, Any]:
    """Write a stored operation as the API does; unlike other fields, ``done`` is there while false.

    Clients rely on it: SkyPilot reads ``operation["done"]`` of a pending operation.
    """
    metadata = {
        "@type": _METADATA,
        "createTime": operation.create_time,
        "target": operation.target,
        "verb": operation.verb,
        "apiVersion": "v2",
    }
    message: dict[str, Any] = {
        "name": f"{parent}/locations/{operation.zone}/operations/{operation.operation_id}",
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
        message["response"] = operation.response
    return message


class Operations:
    """Answers what is asked of operations."""

    def __init__(self, database: Database, project: Project) -> None:
        self._operations = OperationTable(database)
        self._project = project

    def routes(self) -> tuple[Route, ...]:
        """Give the methods with their paths."""
        operations = f"{LOCATION}/operations"
        one = f"{operations}/{{operation}}"
        alpha = one.replace("/v2/", "/v2alpha1/")
        parameters = ("pageSize", "pageToken", "filter", "returnPartialSuccess")
        return (
            Route("operations.list", "GET", operations, self.list, parameters),
            Route("operations.get", "GET", one, self.get),
            Route("operations.get", "GET", alpha, self.get),
            Route("operations.cancel", "POST", f"{one}:cancel", self.cancel),
            Route("operations.delete", "DELETE", one, self.delete),
        )

    def list(self, call: Call) -> Mapping[str, Any]:
        """Give a page of the operations of one zone or, for ``-``, of all.

        A page has less than its size where a ``filter`` leaves some of it out.
        """
        wanted = chosen(call.query.get("filter", ""), FIELDS)
        scope = self._project.many(call.names)
        page = requested_page(f"operations in {call.names['zone']}", call.query)
        found = self._operations.page(scope.zones, page.after, page.size + 1)
        shown, more = found[: page.size], found[page.size :]
        token = page.token((shown[-1].zone, shown[-1].operation_id)) if more else ""
        items = [write(operation, self._project.parent) for operation in shown]
        kept = [item for item in items if wanted(item)]
        return self._project.answer("operations", kept, scope, token)

    def get(self, call: Call) -> Mapping[str, Any]:
        """Give one operation."""
        return write(self._find(call), self._project.parent)

    def cancel(self, call: Call) -> Mapping[str, Any]:
        """Ask that an operation end without success: the creation of a node does, no other.

        One that has ended stays as it is.
        """
        call.json()
        operation = self._find(call)
        if not operation.end_time:
            self._operations.cancel(operation)
        return {}

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Forget an operation that has ended; it is refused (400) for one under way."""
        operation = self._find(call)
        if not operation.end_time:
            raise failed_precondition(
                f"{operation.operation_id} is under way: wait for its end, or cancel it"
            )
        self._operations.forget(operation)
        return {}

    def _find(self, call: Call) -> Operation:
        zone, operation_id = self._project.one(call.names), call.names["operation"]
        operation = self._operations.get(zone, operation_id)
        if operation is None:
            raise not_found(f"{self._project.parent}/locations/{zone}/operations/{operation_id}")
        return operation
