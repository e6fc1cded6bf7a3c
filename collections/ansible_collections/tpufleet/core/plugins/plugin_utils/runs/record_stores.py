"""Open the place where run records and other documents of the fleet are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .run_record import RecordFolder, RecordStore
from .run_record_gcs import RecordBucket


def record_store(fleet_state: str, api: Mapping[str, Any] | None = None) -> RecordStore:
    """Open the records of ``fleet_state``, a directory or ``gs://bucket/prefix``.

    ``api`` is the inventory's variable tpu_api; a bucket takes its endpoint and its key. Raises
    RecordError.
    """
    if fleet_state.startswith("gs://"):
        return RecordBucket.of(fleet_state, api or {})
    return RecordFolder(fleet_state)
