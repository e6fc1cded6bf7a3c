"""Database table of the queued resources."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localcloud.api.catalog import name_of
from localcloud.api.clock import timestamp
from localcloud.api.node_table import new_uid
from localcloud.api.table import ZonalTable

USER = "USER"
SERVICE = "SERVICE"


@dataclass(frozen=True)
class QueuedResource:
    """A stored queued resource.

    ``body`` contains the requested fields of the QueuedResource message. Nodes may be created from
    ``valid_from`` to ``valid_until`` (seconds since 1970; None: no limit). ``error`` is the
    google.rpc.Status of a failure; a queued resource can have it before its state is FAILED.
    """

    uid: int
    zone: str
    request_name: str
    state: str
    initiator: str
    create_time: str
    valid_from: float | None
    valid_until: float | None
    error: Mapping[str, Any] | None
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The queued resource's full name."""
        return name_of("queuedResources", self.zone, self.request_name)


class QueuedResourceTable(ZonalTable[QueuedResource]):
    """The database table ``queued_resources``."""

    _name = "queued_resources"
    _columns = (
        "uid, zone, request_name, state, initiator, create_time, valid_from, valid_until, error, "
        "body"
    )
    _id = "request_name"

    def add(
        self,
        zone: str,
        request_name: str,
        valid: tuple[float | None, float | None],
        body: Mapping[str, Any],
    ) -> QueuedResource:
        """Store a queued resource in state CREATING; the zone must have none of this name yet.

        ``valid`` is the interval in which nodes may be created.
        """
        row = (new_uid(), zone, request_name, "CREATING", USER, timestamp(), *valid)
        self._database.execute(
            "INSERT INTO queued_resources (uid, zone, request_name, state, initiator, "
            "create_time, valid_from, valid_until, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *row,
            json.dumps(body),
        )
        return QueuedResource(*row, error=None, body=body)

    def all(self) -> list[QueuedResource]:
        """Return all queued resources, oldest first."""
        return self._some("TRUE ORDER BY create_time, rowid")

    def move(
        self,
        request: QueuedResource,
        new_state: str,
        initiator: str = SERVICE,
        error: Mapping[str, Any] | None = None,
    ) -> bool:
        """Change the state of a queued resource to ``new_state`` if it is still ``request.state``.

        Returns whether the state changed. ``initiator`` is who caused the change: USER or SERVICE.
        ``error`` replaces the stored error; None removes it.
        """
        update = (
            "UPDATE queued_resources SET state = ?, initiator = ?, error = ? "
            "WHERE uid = ? AND state = ?"
        )
        text = None if error is None else json.dumps(error)
        values = (new_state, initiator, text, request.uid, request.state)
        return self._database.execute(update, *values) == 1

    def remove(self, uid: int) -> None:
        """Delete a queued resource; call it after its nodes are deleted."""
        self._database.execute("DELETE FROM queued_resources WHERE uid = ?", uid)

    def _read(self, rows: Sequence[tuple]) -> list[QueuedResource]:
        return [
            QueuedResource(*row[:8], row[8] and json.loads(row[8]), json.loads(row[9]))
            for row in rows
        ]
