"""Compute's operations: each is under way for a moment, so that who doesn't wait is found out.

What it is about is done when it is stored; its end is a time and not a deed, so that nothing has
to go on after a restart.
"""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localcloud.api.clock import timestamp
from localcloud.api.compute_errors import ComputeError
from localcloud.api.database import Database
from localcloud.api.node_table import new_uid
from localcloud.api.request_ids import check_request_id

LASTS_S = 0.2
_COLUMNS = "uid, scope, name, method, verb, target, target_uid, begins, ends, request_id, error"


@dataclass(frozen=True)
class ComputeOperation:
    """One operation, from ``begins`` to ``ends`` (s since 1970), on what is at ``target``."""

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
    error: str = ""  # JSON of ``{code, message}``, "" without one

    @property
    def insert_time(self) -> str:
        """When it was asked for."""
        return timestamp(self.begins)

    @property
    def end_time(self) -> str:
        """When it ended, or will."""
        return timestamp(self.ends)


class ComputeOperationTable:
    """Reads and writes Compute's operations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def next_end(self) -> float:
        """Give the time at which an operation that is stored now ends, or a moment before."""
        return time.time() + LASTS_S

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
        """Store a new operation, which ends well, or with an error of ``code`` and ``message``."""
        now = time.time()
        name = f"operation-{int(now * 1000)}-{secrets.token_hex(6)}"
        row = (new_uid(), scope, name, method, verb, target, target_uid, now, now + LASTS_S)
        failed = json.dumps(dict(error)) if error else ""
        operation = ComputeOperation(*row, request_id, failed)
        with self._database.transaction() as connection:
            connection.execute(
                f"INSERT INTO compute_operations ({_COLUMNS}) "  # noqa: S608 - ours, no input
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, request_id, failed),
            )
        return operation

    def earlier(self, method: str, request_id: str, target: str) -> ComputeOperation | None:
        """Give the operation that this request began when it came before; None for a new one.

        Raises a 400 for an id that is no UUID, or that was another request's.
        """
        if not request_id:
            return None
        check_request_id(request_id)
        found = self._some("request_id = ?", request_id)
        if found and (found[0].method, found[0].target) != (method, target):
            said = f"Request id '{request_id}' was given to {found[0].method} {found[0].target}"
            raise ComputeError(400, "invalid", said)
        return found[0] if found else None

    def get(self, scope: str, name: str) -> ComputeOperation | None:
        """Give the operation of this name, or of this number; None without one."""
        found = self._some("scope = ? AND (name = ? OR uid = ?)", scope, name, name)
        return found[0] if found else None

    def all(self, scope: str) -> Sequence[ComputeOperation]:
        """Give the operations of a scope, oldest first."""
        return self._some("scope = ? ORDER BY begins, uid", scope)

    def forget(self, uid: int) -> None:
        """Remove an operation."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM compute_operations WHERE uid = ?", (uid,))

    def _some(self, where: str, *values: object) -> list[ComputeOperation]:
        query = f"SELECT {_COLUMNS} FROM compute_operations WHERE {where}"  # noqa: S608 - ours
        return [ComputeOperation(*row) for row in self._database.rows(query, *values)]
