"""Run records as JSON documents, one for each run, and their store in a directory.

A record changes only by compare-and-swap of its generation, so two controllers cannot overwrite
each other's changes. The store in a directory has a lock file for this, the store in a bucket uses
the generation of the object. Records contain no secrets.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..replaced_file import replace_file
from .record_interface import RecordConflictError, RecordError
from .wanted_time import wanted_time

HISTORY = 50


def after_change(
    record: Mapping[str, Any],
    run: str,
    generation: int,
    fields: Mapping[str, Any],
    event: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the record with changed fields, its next generation, and the event in its history.

    ``generation`` is the one that the caller read (0 for no record), ``event`` may be empty.

    Raises RecordConflictError if the record is not at ``generation``.
    """
    there = check_generation(record, run, generation)
    now = round(time.time(), 3)
    history = [*record.get("history", []), *([{"time": now, **event}] if event else [])]
    return {
        **record,
        **fields,
        **wanted_time(record, fields, event, now),
        "run": run,
        "generation": there + 1,
        "history": history[-HISTORY:],
    }


def check_generation(record: Mapping[str, Any], run: str, generation: int) -> int:
    """Return a record's generation. Raises RecordConflictError if it is not ``generation``.

    ``run`` is the name of the run, for errors.
    """
    there = record.get("generation", 0)
    if type(there) is not int:
        raise RecordError(f"run {run}: invalid record: its generation is not a number")
    if there != generation:
        raise RecordConflictError(
            f"the record of run {run} was just changed by another command "
            f"(generation {there}, not {generation}): run yours again"
        )
    return there


class RecordFolder:
    """A store of records in the directory ``runs`` of ``fleet_state``, a JSON file for each run."""

    def __init__(self, fleet_state: str) -> None:
        if "://" in fleet_state:
            raise RecordError(
                f"fleet_state {fleet_state} is neither a directory nor gs://bucket/prefix"
            )
        self._folder = Path(fleet_state).expanduser() / "runs"

    def read(self, run: str) -> dict[str, Any]:
        """Return a run's record, empty if there is none. Raises RecordError if it is damaged."""
        path = self._folder / f"{run}.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise ValueError("it is not a JSON object")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise RecordError(
                f"the record {path} can't be read ({error}): repair it or move it away"
            ) from error
        return found

    def runs(self) -> list[str]:
        """Return the names of the runs that have a record."""
        return sorted(path.stem for path in self._folder.glob("*.json"))

    def change(
        self, run: str, generation: int, fields: Mapping[str, Any], event: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Set fields of a record if it is still at ``generation``; return the new record.

        Generation 0 means that the record does not exist yet. ``event`` is added to the record's
        history unless it is empty. Raises RecordConflictError, RecordError.
        """
        with self._locked(run):
            record = after_change(self.read(run), run, generation, fields, event)
            self._write(run, record)
            return record

    def put(self, run: str, generation: int, record: Mapping[str, Any]) -> None:
        """Replace the record if it is still at ``generation`` (0: it does not exist yet)."""
        with self._locked(run):
            check_generation(self.read(run), run, generation)
            self._write(run, record)

    def remove(self, run: str, generation: int) -> None:
        """Remove the record if it is still at ``generation``."""
        with self._locked(run):
            check_generation(self.read(run), run, generation)
            (self._folder / f"{run}.json").unlink()

    @contextmanager
    def _locked(self, run: str) -> Iterator[None]:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self._folder / f".{run}.lock").open("a", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise RecordError(
                f"can't write to {error.filename}: {error.strerror}. Fix it, or set fleet_state"
            ) from error

    def _write(self, run: str, record: Mapping[str, Any]) -> None:
        content = json.dumps(record, indent=1, sort_keys=True).encode()
        replace_file(self._folder / f"{run}.json", content, durable=True)
