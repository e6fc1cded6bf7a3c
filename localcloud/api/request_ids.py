"""Idempotent requests: a request repeated with the same ``requestId`` has no second effect.

Source: https://google.aip.dev/155
"""

import uuid

from localcloud.api.database import Database
from localcloud.api.errors import invalid
from localcloud.api.operation_table import Operation, OperationTable


class RequestIds:
    """The database table ``request_ids``: the operation that each request id started."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._operations = OperationTable(database)

    def earlier(self, method: str, zone: str, request_id: str, target: str) -> Operation | None:
        """Return the operation that an earlier request with the same id started, or None.

        Raises a 400 if the id is not a UUID or was used for another target.
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
        """Record the operation that a request started, if the request has an id."""
        if request_id:
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT OR REPLACE INTO request_ids VALUES (?, ?, ?, ?)",
                    (method, operation.zone, request_id, operation.operation_id),
                )


def check_request_id(request_id: str) -> None:
    """Raise a 400 if the id is not a UUID or is the all-zero UUID."""
    try:
        known = uuid.UUID(request_id).int != 0
    except ValueError:
        known = False
    if not known:
        raise invalid("requestId", f"requestId '{request_id}' is not a UUID")
