"""Interface for reading and changing run records, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class RecordError(Exception):
    """A record cannot be read or written; the text is one line for the user."""


class RecordConflictError(RecordError):
    """The record has been changed by another process since it was read."""


class RecordStore(Protocol):
    """A store of records. Each stored record has a ``generation``, from 1, which counts changes."""

    def read(self, run: str) -> dict[str, Any]:
        """Return a run's record, empty if there is none. Raises RecordError."""

    def runs(self) -> list[str]:
        """Return the names of the runs that have a record. Raises RecordError."""

    def change(
        self, run: str, generation: int, fields: Mapping[str, Any], event: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Set fields of a record if it is still at ``generation``; return the new record.

        Generation 0 means that the record does not exist yet. ``event`` is added to the record's
        history unless it is empty. Raises RecordConflictError, RecordError.
        """

    def put(self, run: str, generation: int, record: Mapping[str, Any]) -> None:
        """Replace the record if it is still at ``generation`` (0: it does not exist yet).

        Raises RecordConflictError, RecordError.
        """

    def remove(self, run: str, generation: int) -> None:
        """Remove the record if it is still at ``generation``.

        Raises RecordConflictError, RecordError.
        """
