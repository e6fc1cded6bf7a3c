"""Stores of run records and of other documents in ``fleet_state``: a directory or a bucket."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from ...module_utils.cloud.errors import CloudError, Conflict
from ...module_utils.cloud.storage import Bucket
from .record_interface import RecordConflictError, RecordError, RecordStore
from .run_record import RecordFolder, after_change, check_generation


class RecordBucket:
    """The records below ``gs://bucket/prefix``, one object for each run."""

    def __init__(self, objects: Bucket) -> None:
        self._objects = objects

    @classmethod
    def of(cls, fleet_state: str, api: Mapping[str, Any]) -> RecordBucket:
        """Open the records in a bucket. Raises RecordError.

        ``fleet_state`` is its URL, ``api`` the inventory's variable ``tpu_api``.
        """
        try:
            return cls(Bucket.of(f"{fleet_state.rstrip('/')}/runs", api))
        except CloudError as error:
            raise RecordError(f"fleet_state: {error}") from None

    def read(self, run: str) -> dict[str, Any]:
        """Return a run's record, empty if there is none. Raises RecordError."""
        return self._seen(run)[0]

    def runs(self) -> list[str]:
        """Return the names of the runs that have a record. Raises RecordError."""
        try:
            # If fleet_state is a whole bucket, the objects of stored output are also below runs/.
            names = self._objects.names(directly=True)
        except CloudError as error:
            raise RecordError(str(error)) from None
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def change(
        self, run: str, generation: int, fields: Mapping[str, Any], event: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Set fields of a record if it is still at ``generation``; return the new record."""
        before, at = self._seen(run)
        after = after_change(before, run, generation, fields, event)
        after["change"] = secrets.token_hex(8)
        self._swap(run, lambda: self._objects.write(f"{run}.json", after, at))
        return after

    def put(self, run: str, generation: int, record: Mapping[str, Any]) -> None:
        """Replace the record if it is still at ``generation`` (0: it does not exist yet)."""
        before, at = self._seen(run)
        check_generation(before, run, generation)
        self._swap(run, lambda: self._objects.write(f"{run}.json", record, at))

    def remove(self, run: str, generation: int) -> None:
        """Remove the record if it is still at ``generation``."""
        before, at = self._seen(run)
        check_generation(before, run, generation)
        self._swap(run, lambda: self._objects.remove(f"{run}.json", at))

    def _swap(self, run: str, swap: Callable[[], object]) -> None:
        try:
            swap()
        except Conflict:
            raise RecordConflictError(
                f"the record of run {run} was just changed by another command: run yours again"
            ) from None
        except CloudError as error:
            raise RecordError(str(error)) from None

    def _seen(self, run: str) -> tuple[dict[str, Any], int]:
        try:
            return self._objects.read(f"{run}.json")
        except CloudError as error:
            raise RecordError(str(error)) from None


def record_store(fleet_state: str, api: Mapping[str, Any] | None = None) -> RecordStore:
    """Open the records of ``fleet_state``, a directory or ``gs://bucket/prefix``.

    ``api`` is the inventory's variable tpu_api, with the endpoint and credentials for a bucket.
    Raises RecordError.
    """
    if fleet_state.startswith("gs://"):
        return RecordBucket.of(fleet_state, api or {})
    return RecordFolder(fleet_state)
