"""The Compute API's resources in the database: firewalls, networks, disks, project metadata."""

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localcloud.api.clock import timestamp
from localcloud.api.compute_errors import already_exists
from localcloud.api.node_table import new_uid
from localcloud.api.table import Table


@dataclass(frozen=True)
class Resource:
    """A resource of the Compute API.

    ``scope`` is ``global``, ``zones/Z``, ``regions/R`` or, for the project, "". ``ready_at`` is the
    end of the operation that creates the resource, in seconds since 1970. ``body`` is the validated
    request with default values; it names other resources by full name (``projects/P/…``).
    """

    uid: int
    collection: str
    scope: str
    name: str
    create_time: str
    ready_at: float
    body: Mapping[str, Any]

    @property
    def path(self) -> str:
        """The resource's name within the project, such as ``global/firewalls/NAME``."""
        return f"{self.scope}/{self.collection}/{self.name}"

    @property
    def ready(self) -> bool:
        """Whether the operation that creates the resource has ended."""
        return time.time() >= self.ready_at


class ResourceTable(Table[Resource]):
    """Table of the Compute API's resources."""

    _name = "compute_resources"
    _columns = "uid, collection, scope, name, create_time, ready_at, body"

    def add(
        self, collection: str, scope: str, name: str, body: Mapping[str, Any], ready_at: float = 0.0
    ) -> Resource:
        """Store a new resource; raise ComputeError (409) if the name is taken.

        ``collection`` is the plural of the resource's kind (``disks``). See Resource for the other
        arguments.
        """
        uid = new_uid()
        row = (uid, collection, scope, name, timestamp(), ready_at)
        try:
            self._database.execute(
                f"INSERT INTO compute_resources ({self._columns}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - only column names, no user input
                *row,
                json.dumps(body),
            )
        except sqlite3.IntegrityError:
            raise already_exists(f"{scope}/{collection}/{name}") from None
        return Resource(*row, body)

    def get(self, collection: str, scope: str, name: str) -> Resource | None:
        """Return the resource with this name in a collection (``disks``) and scope, or None."""
        where = "collection = ? AND scope = ? AND name = ?"
        return self._one(where, collection, scope, name)

    def all(self, collection: str, scope: str | None = None) -> list[Resource]:
        """Return a collection's resources in a scope (default: all), sorted by scope and name."""
        where = "collection = ? AND coalesce(?, scope) = scope ORDER BY scope, name"
        return self._some(where, collection, scope)

    def change(self, uid: int, body: Mapping[str, Any]) -> None:
        """Replace the body of a resource."""
        update = "UPDATE compute_resources SET body = ? WHERE uid = ?"
        self._database.execute(update, json.dumps(body), uid)

    def remove(self, uid: int) -> None:
        """Delete a resource."""
        self._database.execute("DELETE FROM compute_resources WHERE uid = ?", uid)

    def _read(self, rows: Sequence[tuple]) -> list[Resource]:
        return [Resource(*row[:-1], json.loads(row[-1])) for row in rows]
