"""Interface for reading stored output from a location (directory or bucket), and its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ...module_utils.cloud.storage import StoredObject


class OutputError(Exception):
    """The stored output cannot be read or written; the text is one line for the user."""


class InvalidObjectError(OutputError):
    """The name or the size of an object is invalid."""


class OutputStore(Protocol):
    """Stored output at a location: a directory or a bucket. Thread-safe."""

    location: str

    def list(self, run: str) -> list[StoredObject]:
        """List the objects of a run; their names begin with ``RUN/``. Raises OutputError."""

    def read(self, stored: StoredObject, is_final: bool = False) -> bytes:
        """Return the content of an object that list() returned, at most SEGMENT_BYTES.

        If the object was replaced after list(), returns the new content; if it was removed, returns
        no content. ``is_final`` says that the object never changes, so its content may be cached.
        Raises OutputError.
        """
