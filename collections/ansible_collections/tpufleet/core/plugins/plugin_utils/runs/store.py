"""Store of validated run records: each is validated after it is read and before it is written.

Records are JSON below ``fleet_state``, a directory or ``gs://bucket/prefix``
(record_store.py). In a bucket each read is a round trip, so reads run in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...module_utils.worker.contract import RUN_NAME
from .record import InvalidRecordError, RunRecord, parse_record
from .record_error import RecordConflictError, RecordError, UnusableRecordError
from .record_store import RecordStore, after_change, record_store

if TYPE_CHECKING:
    from .history import Event

MAX_PARALLEL_READS = 32
ARCHIVE_AFTER_S = 7 * 86400.0
MAX_ARCHIVED_PER_CALL = 100


@dataclass(frozen=True)
class UnusableRecord:
    """A record that cannot be read or is invalid.

    ``name`` is the name of its file without ``.json``; it may be any string. ``error`` is one line.
    """

    name: str
    error: str


@dataclass(frozen=True)
class Records:
    """All records of a store: the usable ones by run name, and the unusable ones."""

    usable: Mapping[str, RunRecord]
    unusable: tuple[UnusableRecord, ...] = ()


STORE_OPTIONS = {
    "fleet_state": {"type": "str", "required": True},
    "api": {"type": "dict", "default": {}},
}
"""Options of modules that read run records: the arguments of ``RunStore.of``."""


class RunStore:
    """The run records of one ``fleet_state``. Thread-safe.

    Records of runs that ended long ago are moved from ``documents`` to ``archive``, so that a pass
    of the watch reads only current ones. An archived record can still be read by name; a change
    moves it back.
    """

    def __init__(self, documents: RecordStore, archive: RecordStore) -> None:
        self._documents, self._archive = documents, archive

    @classmethod
    def of(cls, fleet_state: str, api: Mapping[str, Any] | None = None) -> RunStore:
        """Open the records of ``fleet_state``, a directory or ``gs://bucket/prefix``.

        ``api`` is the inventory's variable ``tpu_api``. Raises RecordError.
        """
        archive = record_store(f"{fleet_state.rstrip('/')}/archive", api)
        return cls(record_store(fleet_state, api), archive)

    def read(self, run: str) -> RunRecord | None:
        """Return a run's record, None if it has none.

        Raises InvalidRecordError if the record is invalid, RecordError if it cannot be read.
        """
        if not RUN_NAME.fullmatch(run):
            raise InvalidRecordError(run, "run", "is not a valid run name")
        stored = self._documents.read(run) or self._archive.read(run)
        return parse_record(run, stored) if stored else None

    def names(self) -> list[str]:
        """Return the names of the runs with a record outside the archive. Raises RecordError."""
        return [name for name in self._documents.runs() if RUN_NAME.fullmatch(name)]

    def read_all(self, archived: bool = False) -> Records:
        """Return the usable and unusable records outside the archive.

        With ``archived``, the result includes the archive. Raises RecordError if the records cannot
        be listed.
        """

        def read_one(run: str) -> RunRecord | UnusableRecord | None:
            try:
                return self.read(run)
            except RecordError as error:
                return UnusableRecord(run, str(error))

        names = self._documents.runs()
        if archived:
            names = sorted({*names, *self._archive.runs()})
        with ThreadPoolExecutor(MAX_PARALLEL_READS) as pool:
            results = list(pool.map(read_one, names))
        return Records(
            {result.run: result for result in results if isinstance(result, RunRecord)},
            tuple(result for result in results if isinstance(result, UnusableRecord)),
        )

    def change(
        self, run: str, generation: int, fields: Mapping[str, Any], event: Event | None = None
    ) -> RunRecord:
        """Set fields of a record if it is still at ``generation``; return the new record.

        Generation 0 means that the record does not exist yet. ``event`` is added to the history.
        Raises RecordConflictError if the record is at a different generation, InvalidRecordError
        without writing if the new record would be invalid, and RecordError for other failures.
        """
        before = self.read(run)
        stored = before.fields() if before else {}
        event_fields = event.fields() if event else {}
        parse_record(run, after_change(stored, run, generation, fields, event_fields))
        if before and not self._documents.read(run):
            self._documents.put(run, 0, stored)
        return parse_record(run, self._documents.change(run, generation, fields, event_fields))

    def archive_finished(self, records: Iterable[RunRecord], now: float) -> list[str]:
        """Archive the records of runs that ended more than ARCHIVE_AFTER_S ago; return their names.

        ``now`` is in unix seconds. One call moves at most MAX_ARCHIVED_PER_CALL records. Raises
        RecordError.
        """
        finished = [record for record in records if is_over(record, now)][:MAX_ARCHIVED_PER_CALL]
        return [record.run for record in finished if self._move(record)]

    def _move(self, record: RunRecord) -> bool:
        older = self._archive.read(record.run).get("generation", 0)
        if type(older) is not int:
            raise UnusableRecordError(
                f"archive/runs/{record.run}.json in fleet_state: generation is not a whole number. "
                "Correct the file, or move it out of fleet_state"
            )
        try:
            # Copy before removing, so that a run always has a record. While both records exist,
            # reads return the one outside the archive.
            self._archive.put(record.run, older, record.fields())
            self._documents.remove(record.run, record.generation)
        except RecordConflictError:
            return False  # another process changed the record, so the run may be wanted again
        return True


def is_over(record: RunRecord, now: float) -> bool:
    """Return whether a run is done or stopped, and unchanged for ARCHIVE_AFTER_S seconds."""
    times = [event.time for event in record.history] + [record.wanted_until or 0.0]
    last_change = max(times)
    return not record.is_wanted and 0 < last_change < now - ARCHIVE_AFTER_S
