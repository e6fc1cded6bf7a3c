"""Base classes of the database tables, whose rows are read as dataclasses."""

from collections.abc import Collection, Sequence

from localcloud.api.database import Database


class Table[Row]:
    """Base class of a database table.

    A subclass sets ``_name`` (the table's name) and ``_columns`` (the columns to read, as SQL), and
    implements ``_read``, which converts rows with these columns to instances of ``Row``.
    """

    _name: str
    _columns: str

    def __init__(self, database: Database) -> None:
        self._database = database

    def _some(self, where: str, *values: object) -> list[Row]:
        """Return the rows that match a condition, which can end with ORDER BY and LIMIT."""
        query = f"SELECT {self._columns} FROM {self._name} WHERE {where}"  # noqa: S608 - only names in the code, no user input
        return self._read(self._database.rows(query, *values))

    def _one(self, where: str, *values: object) -> Row | None:
        rows = self._some(where, *values)
        return rows[0] if rows else None

    def _read(self, rows: Sequence[tuple]) -> list[Row]:
        raise NotImplementedError


class ZonalTable[Row](Table[Row]):
    """A table of resources that are in zones.

    ``_id`` is the column with a resource's id; ``Row`` has a field of the same name.
    """

    _id: str

    def get(self, zone: str, resource_id: str) -> Row | None:
        """Return the resource with this zone and id, or None."""
        return self._one(f"zone = ? AND {self._id} = ?", zone, resource_id)

    def find(self, uid: int) -> Row | None:
        """Return the node or queued resource with this uid, or None."""
        return self._one("uid = ?", uid)

    def in_zones(self, zones: Collection[str]) -> list[Row]:
        """Return the resources of ``zones``, sorted by zone and id."""
        placeholders = ", ".join("?" * len(zones))
        return self._some(f"zone IN ({placeholders}) ORDER BY zone, {self._id}", *zones)
