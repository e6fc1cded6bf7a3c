"""The store of run records: every record is checked when it is read and before it is written.

Records are JSON below ``fleet_state``, a directory or ``gs://bucket/prefix``
(plugin_utils/runs/run_record.py). In a bucket each read is a round trip, so many are read at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ...module_utils.worker.contract import RUN_NAME
from .history import Event
from .record import DesiredState, InvalidRecordError, RunRecord, parse_record
from .record_store import record_store
from .run_record import (
    RecordConflictError,
    RecordError,
    RecordStore,
    after_change,
)

READ_AT_ONCE = 32
ARCHIVE_AFTER_S = 7 * 86400.0
ARCHIVE_AT_ONCE = 100


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
    """The run records of one ``fleet_state``. Safe for several threads.

    Records of runs that are over are moved to ``archive``, so that a pass of the watch reads only
    live ones. They are still found by name, and a change moves them back.
    """

    def __init__(self, documents: RecordStore, archive: RecordStore | None = None) -> None:
        self._documents, self._archive = documents, archive

    @classmethod
    def of(cls, fleet_state: str, api: Mapping[str, Any] | None = None) -> RunStore:
        """Open the records of ``fleet_state``; ``api`` is the inventory's tpu_api.

        Raises RecordError.
        """
        archive = record_store(f"{fleet_state.rstrip('/')}/archive", api)
        return cls(record_store(fleet_state, api), archive)

    def read(self, run: str) -> RunRecord | None:
        """Return a run's record, None if it has none.

        Raises InvalidRecordError for one that is not valid, RecordError where it cannot be read.
        """
        if not RUN_NAME.fullmatch(run):
            raise InvalidRecordError(run, "run", "is not a valid run name")
        found = self._documents.read(run)
        if found == {} and self._archive:
            found = self._archive.read(run)
        return parse_record(run, found) if found != {} else None

    def read_all(self, archived: bool = False) -> Records:
        """Return all records. One that cannot be used is listed apart and hides no other.

        ``archived`` includes those in the archive. Raises RecordError where the records cannot be
        listed.
        """

        def one(run: str) -> RunRecord | UnusableRecord | None:
            try:
                return self.read(run)
            except RecordError as error:
                return UnusableRecord(run, str(error))

        names = self._documents.runs()
        if archived and self._archive:
            names = sorted({*names, *self._archive.runs()})
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            found = list(pool.map(one, names))
        return Records(
            {each.run: each for each in found if isinstance(each, RunRecord)},
            tuple(each for each in found if isinstance(each, UnusableRecord)),
        )

    def change(
        self, run: str, generation: int, fields: Mapping[str, Any], event: Event | None = None
    ) -> RunRecord:
        """Set fields of the record that is still at ``generation`` (0: there is none yet).

        ``event``, if there is one, is added to the history. Returns the new record. Raises
        RecordConflictError if somebody else changed it, InvalidRecordError before it would write
        what it could not read back, RecordError.
        """
        before = self.read(run)
        known = before.fields() if before else {}
        happened = event.fields() if event else {}
        parse_record(run, after_change(known, run, generation, fields, happened))
        if before and self._archive and self._documents.read(run) == {}:
            self._documents.put(run, 0, known)
        return parse_record(run, self._documents.change(run, generation, fields, happened))

    def archive_finished(self, records: Iterable[RunRecord], now: float) -> list[str]:
        """Move runs to the archive that are done or stopped and unchanged for ARCHIVE_AFTER_S.

        ``now`` is in unix seconds. At most ARCHIVE_AT_ONCE are moved in one call. Returns their
        names. Raises RecordError.
        """
        archive = self._archive
        if archive is None:
            return []
        over = [each for each in records if is_over(each, now)][:ARCHIVE_AT_ONCE]
        return [each.run for each in over if self._move(each, archive)]

    def _move(self, record: RunRecord, archive: RecordStore) -> bool:
        older = archive.read(record.run)
        try:
            # Copy first, so that a run always has a record. Meanwhile the live one counts.
            archive.put(record.run, int(older.get("generation", 0)), record.fields())
            self._documents.remove(record.run, record.generation)
        except RecordConflictError:
            return False  # somebody has just changed it, so it is not over
        return True


def is_over(record: RunRecord, now: float) -> bool:
    """Return whether a run has been done or stopped for so long that its record may be archived."""
    times = [event.time for event in record.history] + [record.wanted_until or 0.0]
    last = max(times)
    return record.wanted != DesiredState.RUNNING and 0 < last < now - ARCHIVE_AFTER_S
