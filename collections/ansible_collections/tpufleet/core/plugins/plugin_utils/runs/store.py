"""The store of run records: every record is checked when it is read and before it is written.

Records lie as JSON below ``fleet_state``, a directory or ``gs://bucket/prefix``
(module_utils/run_record.py). In a bucket each read is a round trip, so many are read at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ...module_utils.run import RUN_NAME
from ...module_utils.run_record import RecordError, RecordStore, after_change, record_store
from .record import InvalidRecordError, RunRecord, parse_record

READ_AT_ONCE = 32


@dataclass(frozen=True)
class UnusableRecord:
    """A record that was skipped. ``name`` may be any text; ``why`` is one line."""

    name: str
    why: str


@dataclass(frozen=True)
class Records:
    """All records that could be used, by run, and those that could not."""

    usable: Mapping[str, RunRecord]
    unusable: tuple[UnusableRecord, ...] = ()


class RunStore:
    """The run records of one ``fleet_state``. Safe for several threads."""

    def __init__(self, documents: RecordStore) -> None:
        self._documents = documents

    @classmethod
    def of(cls, fleet_state: str, api: Mapping[str, Any] | None = None) -> RunStore:
        """Open the records of ``fleet_state``; ``api`` is the inventory's tpu_api.

        Raises RecordError.
        """
        return cls(record_store(fleet_state, api))

    def read(self, run: str) -> RunRecord | None:
        """Return a run's record, None if it has none.

        Raises InvalidRecordError for one that is not valid, RecordError where it cannot be read.
        """
        if not RUN_NAME.fullmatch(run):
            raise InvalidRecordError(run, "run", "is not a valid run name")
        found = self._documents.read(run)
        return parse_record(run, found) if found != {} else None

    def read_all(self) -> Records:
        """Return all records. One that cannot be used is named and hides no other.

        Raises RecordError where the records cannot be listed.
        """

        def one(run: str) -> RunRecord | UnusableRecord | None:
            try:
                return self.read(run)
            except RecordError as error:
                return UnusableRecord(run, str(error))

        names = self._documents.runs()
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            found = list(pool.map(one, names))
        return Records(
            {each.run: each for each in found if isinstance(each, RunRecord)},
            tuple(each for each in found if isinstance(each, UnusableRecord)),
        )

    def change(
        self, run: str, generation: int, fields: Mapping[str, Any], event: str = ""
    ) -> RunRecord:
        """Set fields of the record that is still at ``generation`` (0: there is none yet).

        ``event``, if not empty, is added to the history. Returns the new record. Raises
        RecordConflictError if somebody else changed it, InvalidRecordError before it would write
        what it could not read back, RecordError.
        """
        before = self.read(run)
        known = before.fields() if before else {}
        parse_record(run, after_change(known, run, generation, fields, event))
        return parse_record(run, self._documents.change(run, generation, fields, event))
