"""Idempotent requests: two requests with one id are one request (https://google.aip.dev/155)."""

import uuid

from localcloud.api.database import Database
from localcloud.api.errors import invalid
from localcloud.api.operation_table import Operation, OperationTable


class RequestIds:
    """Records which operation each request id began."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._operations = OperationTable(database)

    def earlier(self, method: str, zone: str, request_id: str, target: str) -> Operation | None:
        """Return the operation that a request with the same id began, or None.

        Raises a 400 if the id is not a UUID or belongs to another request.
        """
        if not request_id:
            return None
        check_request_id(request_id)
        rows = self._database.rows(
            "SELECT operation_id FROM request_ids WHERE method = ? AND zone = ? AND request_id = ?",
            *(method, zone, request_id),
        )
        operation = self._operations.get(zone, rows[0][0]) if rows else None
        if operation is not None and operation.target != target:
            message = f"requestId '{request_id}' was used for {operation.target}"
            raise invalid("requestId", message)
        return operation

    def remember(self, method: str, request_id: str, operation: Operation) -> None:
        """Record the operation of a request, if it has an id."""
        if request_id:
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT OR REPLACE INTO request_ids VALUES (?, ?, ?, ?)",
                    (method, operation.zone, request_id, operation.operation_id),
                )


def check_request_id(request_id: str) -> None:
    """Raise a 400 if the id is not a UUID, or is all zeroes."""
    try:
        known = uuid.UUID(request_id).int != 0
    except ValueError:
        known = False
    if not known:
        raise invalid("requestId", f"requestId '{request_id}' is not a UUID")
