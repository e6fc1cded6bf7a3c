"""The Compute API's operations, stored in the database.

An operation is stored in the transaction that changes its target, so that a restarted server has no
work to resume. Although its work is then done, the operation counts as running for ``DURATION_S``
seconds, to reveal clients that do not wait for its end.
"""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localcloud.api.node_table import new_uid
from localcloud.api.operation_table import check_request_id
from localcloud.api.table import Table

DURATION_S = 0.2


@dataclass(frozen=True)
class ComputeOperation:
    """An operation on ``target`` that runs from ``begins`` to ``ends`` (seconds since 1970)."""

    uid: int
    scope: str
    name: str
    method: str
    verb: str
    target: str
    target_uid: int
    begins: float
    ends: float
    request_id: str
    error: str = ""  # JSON of ``{code, message}``; "" if the operation succeeds


class ComputeOperationTable(Table[ComputeOperation]):
    """Table of the Compute API's operations."""

    _name = "compute_operations"
    _columns = "uid, scope, name, method, verb, target, target_uid, begins, ends, request_id, error"

    def next_end(self) -> float:
        """Return when an operation stored now would end, in seconds since 1970."""
        return time.time() + DURATION_S

    def add(
        self,
        scope: str,
        method: str,
        verb: str,
        target: str,
        target_uid: int,
        request_id: str,
        error: Mapping[str, str] | None = None,
    ) -> ComputeOperation:
        """Store and return a new operation, which fails with ``error`` or, without it, succeeds.

        ``scope`` is ``global``, ``zones/Z`` or ``regions/R``. ``method`` is the API method
        (``disks.insert``), ``verb`` the operation's type (``insert``). ``target`` is the path of
        the resource that the operation changes, ``target_uid`` the uid of this resource.
        """
        now = time.time()
        name = f"operation-{int(now * 1000)}-{secrets.token_hex(6)}"
        row = (new_uid(), scope, name, method, verb, target, target_uid, now, now + DURATION_S)
        failed = json.dumps(dict(error)) if error else ""
        operation = ComputeOperation(*row, request_id, failed)
        self._database.execute(
            f"INSERT INTO compute_operations ({self._columns}) "  # noqa: S608 - only column names, no user input
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *row,
            request_id,
            failed,
        )
        return operation

    def earlier(self, request_id: str) -> ComputeOperation | None:
        """Return the operation that a request with this id started, or None.

        Raises HTTP 400 if the id is not a UUID.
        """
        check_request_id(request_id)
        return self._one("request_id = ?", request_id)

    def get(self, scope: str, name: str) -> ComputeOperation | None:
        """Return the operation in ``scope`` (``zones/Z``) with this name or id, or None."""
        return self._one("scope = ? AND (name = ? OR uid = ?)", scope, name, name)

    def all(self, scope: str) -> Sequence[ComputeOperation]:
        """Return the operations in a scope, such as ``global`` or ``zones/Z``, oldest first."""
        return self._some("scope = ? ORDER BY begins, uid", scope)

    def forget(self, uid: int) -> None:
        """Delete an operation."""
        self._database.execute("DELETE FROM compute_operations WHERE uid = ?", uid)

    def _read(self, rows: Sequence[tuple]) -> list[ComputeOperation]:
        return [ComputeOperation(*row) for row in rows]
