"""Database tables of the long-running operations, and of the request ids that started them.

A request repeated with the same ``requestId`` has no second effect (https://google.aip.dev/155).
"""

import json
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localcloud.api.clock import timestamp
from localcloud.api.errors import invalid
from localcloud.api.table import ZonalTable
from localcloud.api.versions import Version


@dataclass(frozen=True)
class Operation:
    """One long-running operation; it is running while ``end_time`` is empty.

    ``target`` and ``uid`` are the full name and the uid of the node or queued resource that the
    operation changes. ``detail`` has the data with which a restarted server resumes the operation.
    ``version`` is the API version of the call that started the operation.
    """

    zone: str
    operation_id: str
    uid: int
    verb: str
    target: str
    create_time: str
    end_time: str = ""
    cancel_requested: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)
    response: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    version: Version = Version.V2

    @property
    def collection(self) -> str:
        """The kind of resource that the operation changes: ``nodes`` or ``queuedResources``."""
        return self.target.split("/")[-2]


class OperationTable(ZonalTable[Operation]):
    """The database tables ``operations`` and ``request_ids``."""

    _name = "operations"
    _columns = (
        "zone, operation_id, uid, verb, target, create_time, end_time, cancel_requested, "
        "detail, response, error, api_version"
    )
    _id = "operation_id"

    def add(
        self,
        zone: str,
        uid: int,
        verb: str,
        target: str,
        detail: Mapping[str, Any] | None = None,
        *,
        version: Version = Version.V2,
        request_id: str = "",
    ) -> Operation:
        """Store a new, running operation, and the id of the request that started it.

        ``target`` and ``uid`` are the full name and the uid of the node or queued resource,
        ``verb`` is the operation's kind, such as ``create``. For ``detail`` and ``version`` see
        Operation.
        """
        values = (zone, f"operation-{secrets.token_hex(12)}", uid, verb, target, timestamp())
        with self._database.transaction():
            self._database.execute(
                "INSERT INTO operations (zone, operation_id, uid, verb, target, create_time, "
                "detail, api_version) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                *values,
                json.dumps(detail or {}),
                version,
            )
            operation = Operation(*values, detail=detail or {}, version=version)
            if request_id:
                self._database.execute(
                    "INSERT OR REPLACE INTO request_ids VALUES (?, ?, ?, ?)",
                    f"{operation.collection}.{verb}",
                    zone,
                    request_id,
                    operation.operation_id,
                )
        return operation

    def succeed(self, operation: Operation, response: Mapping[str, Any]) -> None:
        """Mark an operation as done, with its response."""
        self._end(operation, json.dumps(response), None)

    def fail(self, operation: Operation, code: int, message: str) -> None:
        """Mark an operation as done, with an error; ``code`` is a google.rpc.Code."""
        self._end(operation, None, json.dumps({"code": code, "message": message}))

    def _end(self, operation: Operation, response: str | None, error: str | None) -> None:
        update = (
            "UPDATE operations SET end_time = ?, response = ?, error = ? "
            "WHERE zone = ? AND operation_id = ? AND end_time = ''"
        )
        key = (operation.zone, operation.operation_id)
        self._database.execute(update, timestamp(), response, error, *key)

    def cancel(self, operation: Operation) -> None:
        """Record that cancellation of the operation was requested."""
        self._change("UPDATE operations SET cancel_requested = 1", operation)

    def forget(self, operation: Operation) -> None:
        """Delete an operation."""
        self._change("DELETE FROM operations", operation)

    def _change(self, change: str, operation: Operation) -> None:
        where = "WHERE zone = ? AND operation_id = ?"
        self._database.execute(f"{change} {where}", operation.zone, operation.operation_id)

    def earlier(self, verb: str, zone: str, request_id: str, target: str) -> Operation | None:
        """Return the operation that an earlier request with ``request_id`` started, or None.

        Raises HTTP 400 if the id is not a UUID or belongs to a request for another resource.
        """
        if not request_id:
            return None
        check_request_id(request_id)
        rows = self._database.rows(
            "SELECT operation_id FROM request_ids WHERE method = ? AND zone = ? AND request_id = ?",
            *(f"{target.split('/')[-2]}.{verb}", zone, request_id),
        )
        operation = self.get(zone, rows[0][0]) if rows else None
        if operation is not None and operation.target != target:
            message = f"requestId '{request_id}' was used for {operation.target}"
            raise invalid("requestId", message)
        return operation

    def of(self, uid: int, verb: str) -> Operation | None:
        """Return the newest operation on a node or queued resource, or None.

        ``verb`` is the kind of the operation, such as ``create``; ``uid`` is the resource's uid.
        """
        where = "uid = ? AND verb = ? ORDER BY create_time DESC, rowid DESC LIMIT 1"
        return self._one(where, uid, verb)

    def last_error(self, zone: str, target: str) -> str:
        """Return the error message of the newest failed operation on ``target``, or ""."""
        where = (
            "zone = ? AND target = ? AND error IS NOT NULL ORDER BY end_time DESC, rowid DESC "
            "LIMIT 1"
        )
        operation = self._one(where, zone, target)
        return str(operation.error["message"]) if operation and operation.error else ""

    def running(self) -> list[Operation]:
        """Return the running operations, oldest first."""
        return self._some("end_time = '' ORDER BY create_time, rowid")

    def _read(self, rows: Sequence[tuple]) -> list[Operation]:
        return [
            Operation(
                *row[:7],
                bool(row[7]),
                json.loads(row[8]),
                _json(row[9]),
                _json(row[10]),
                Version(row[11]),
            )
            for row in rows
        ]


def _json(text: str | None) -> Mapping[str, Any] | None:
    return None if text is None else json.loads(text)


def check_request_id(request_id: str) -> None:
    """Raise HTTP 400 if the id is not a UUID or is the all-zero UUID."""
    try:
        is_valid = uuid.UUID(request_id).int != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise invalid("requestId", f"requestId '{request_id}' is not a UUID")
