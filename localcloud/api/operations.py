"""The methods of ``projects.locations.operations``."""

from collections.abc import Mapping
from typing import Any

from localcloud.api.database import Database
from localcloud.api.errors import ApiError, not_found
from localcloud.api.operation_table import Operation, OperationTable
from localcloud.api.paging import requested_page
from localcloud.api.project import LOCATION, Project
from localcloud.api.routing import Call, Route

_METADATA = "type.googleapis.com/google.cloud.tpu.v2.OperationMetadata"


def write(operation: Operation, parent: str) -> dict[str, Any]:
    """Write a stored operation as the API does: ``done`` only once it is true."""
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
    }
    if operation.end_time:
        metadata["endTime"] = operation.end_time
        message["done"] = True
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
        parameters = ("pageSize", "pageToken", "filter", "returnPartialSuccess")
        return (
            Route("operations.list", "GET", operations, self.list, parameters),
            Route("operations.get", "GET", f"{operations}/{{operation}}", self.get),
        )

    def list(self, call: Call) -> Mapping[str, Any]:
        """Give a page of the operations of one zone or, for ``-``, of all."""
        if call.query.get("filter"):
            raise ApiError(501, "operations.list takes no filter here yet")
        scope = self._project.many(call.names)
        page = requested_page(f"operations in {call.names['zone']}", call.query)
        found = self._operations.page(scope.zones, page.after, page.size + 1)
        shown, more = found[: page.size], found[page.size :]
        token = page.token((shown[-1].zone, shown[-1].operation_id)) if more else ""
        items = [write(operation, self._project.parent) for operation in shown]
        return self._project.answer("operations", items, scope, token)

    def get(self, call: Call) -> Mapping[str, Any]:
        """Give one operation."""
        zone, operation_id = self._project.one(call.names), call.names["operation"]
        operation = self._operations.get(zone, operation_id)
        if operation is None:
            raise not_found(f"{self._project.parent}/locations/{zone}/operations/{operation_id}")
        return write(operation, self._project.parent)
