"""Stores of run records and of other documents in ``fleet_state``: a directory or a bucket.

A record changes only by compare-and-swap of its generation, so two controllers cannot overwrite
each other's changes. The store in a directory has a lock file for this, the store in a bucket uses
the generation of the object. Records contain no secrets.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ...module_utils.cloud.errors import BadObject, CloudError, Conflict
from ...module_utils.cloud.storage import SMALL_OBJECT_RETRY, Bucket
from ...module_utils.worker.os_errors import os_error_text
from ..replaced_file import replace_file
from .event_kind import MAX_HISTORY
from .record_error import RecordConflictError, RecordError, UnusableRecordError
from .wanted_time import wanted_time


def after_change(
    record: Mapping[str, Any],
    run: str,
    generation: int,
    fields: Mapping[str, Any],
    event: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a copy of the record with new values of ``fields`` and the next generation.

    ``event`` is added to the history of the copy unless it is empty. ``generation`` is the record's
    generation when the caller read it; 0 if there was no record.

    Raises RecordConflictError if the record is not at ``generation``.
    """
    _check_generation(record, run, generation)
    now = round(time.time(), 3)
    history = [*record.get("history", []), *([{"time": now, **event}] if event else [])]
    return {
        **record,
        **fields,
        **wanted_time(record, fields, event, now),
        "run": run,
        "generation": generation + 1,
        "history": history[-MAX_HISTORY:],
    }


def _check_generation(record: Mapping[str, Any], run: str, generation: int) -> None:
    current = record.get("generation", 0)
    if type(current) is not int:
        raise RecordError(
            f"run {run}: invalid record: its generation is not a number. Repair the record in "
            "fleet_state, or move it away"
        )
    if current != generation:
        raise RecordConflictError(
            f"the record of run {run} was just changed by another command "
            f"(generation {current}, not {generation}). Run your command again"
        )


class RecordStore(ABC):
    """A store of records. Each stored record has a ``generation``, from 1, which counts changes.

    All methods raise RecordError; those that change a record raise RecordConflictError if another
    process has changed it since it was read.
    """

    @abstractmethod
    def runs(self) -> list[str]:
        """Return the names of the runs that have a record."""

    def read(self, run: str) -> dict[str, Any]:
        """Return a run's record, empty if there is none."""
        return self._load(run)[0]

    def change(
        self, run: str, generation: int, fields: Mapping[str, Any], event: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Set fields of a record if it is still at ``generation``; return the new record.

        Generation 0 means that the record does not exist yet. ``event`` is added to the record's
        history unless it is empty.
        """
        with self._locked(run):
            before, object_generation = self._load(run)
            after = after_change(before, run, generation, fields, event)
            self._write(run, after, object_generation)
        return after

    def put(self, run: str, generation: int, record: Mapping[str, Any]) -> None:
        """Replace the record if it is still at ``generation`` (0: it does not exist yet)."""
        with self._locked(run):
            before, object_generation = self._load(run)
            _check_generation(before, run, generation)
            self._write(run, record, object_generation)

    def remove(self, run: str, generation: int) -> None:
        """Remove the record if it is still at ``generation``."""
        with self._locked(run):
            before, object_generation = self._load(run)
            _check_generation(before, run, generation)
            self._remove(run, object_generation)

    @abstractmethod
    def _load(self, run: str) -> tuple[dict[str, Any], int]:
        """Return a run's record and the stored object's generation (0 in a directory)."""

    @abstractmethod
    def _locked(self, run: str) -> AbstractContextManager[None]:
        """Return a context for changing a record; it turns storage errors into RecordErrors."""

    @abstractmethod
    def _write(self, run: str, record: Mapping[str, Any], object_generation: int) -> None:
        """Replace the record; ``object_generation`` is the number that _load() returned."""

    @abstractmethod
    def _remove(self, run: str, object_generation: int) -> None:
        """Remove the record; ``object_generation`` is the number that _load() returned."""


class RecordFolder(RecordStore):
    """A store of records in the directory ``runs`` of ``fleet_state``, a JSON file for each run."""

    def __init__(self, fleet_state: str) -> None:
        if "://" in fleet_state:
            raise RecordError(
                f"fleet_state {fleet_state} is neither a directory nor gs://bucket/prefix. "
                "Set fleet_state to one of these"
            )
        self._folder = Path(fleet_state).expanduser() / "runs"

    def runs(self) -> list[str]:
        """Return the names of the runs that have a record."""
        try:
            # iterdir() fails if the directory can't be read; glob() would return no names.
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RecordError(
                f"the records in {self._folder} can't be listed: {error.strerror}. Correct this, "
                "or set fleet_state to another directory"
            ) from error
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def _load(self, run: str) -> tuple[dict[str, Any], int]:
        path = self._folder / f"{run}.json"
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}, 0
        except OSError as error:
            raise RecordError(
                f"the record {path} can't be read: {error.strerror}. Correct this, then run your "
                "command again"
            ) from error
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise UnusableRecordError(f"{path} is not a JSON object. Repair it or move it away")
        return record, 0

    @contextmanager
    def _locked(self, run: str) -> Iterator[None]:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self._folder / f".{run}.lock").open("a", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise RecordError(
                f"can't write to {os_error_text(error, str(self._folder))}. Fix this, or set "
                "fleet_state to another directory"
            ) from error

    def _write(self, run: str, record: Mapping[str, Any], object_generation: int) -> None:
        content = json.dumps(record, indent=1, sort_keys=True).encode()
        replace_file(self._folder / f"{run}.json", content, durable=True)

    def _remove(self, run: str, object_generation: int) -> None:
        (self._folder / f"{run}.json").unlink()


class RecordBucket(RecordStore):
    """The records below ``gs://bucket/prefix``, one object for each run."""

    def __init__(self, objects: Bucket) -> None:
        self._objects = objects

    def runs(self) -> list[str]:
        """Return the names of the runs that have a record."""
        try:
            # List no subdirectories: if fleet_state is a whole bucket, runs/ also contains the
            # directories of stored output.
            names = self._objects.names(directly=True)
        except CloudError as error:
            raise RecordError(str(error)) from None
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def change(
        self, run: str, generation: int, fields: Mapping[str, Any], event: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Change a record as the base class does, and add a random token to it.

        ``Bucket.write`` requires that no two writers write the same content. The token ensures it.
        """
        return super().change(run, generation, {**fields, "change": secrets.token_hex(8)}, event)

    def _load(self, run: str) -> tuple[dict[str, Any], int]:
        try:
            return self._objects.read(f"{run}.json")
        except BadObject as error:
            raise UnusableRecordError(str(error)) from None
        except CloudError as error:
            raise RecordError(str(error)) from None

    @contextmanager
    def _locked(self, run: str) -> Iterator[None]:
        try:
            yield
        except Conflict:
            raise RecordConflictError(
                f"the record of run {run} was just changed by another command. Run your command "
                "again"
            ) from None
        except CloudError as error:
            raise RecordError(str(error)) from None

    def _write(self, run: str, record: Mapping[str, Any], object_generation: int) -> None:
        self._objects.write(f"{run}.json", record, object_generation)

    def _remove(self, run: str, object_generation: int) -> None:
        self._objects.remove(f"{run}.json", object_generation)


def record_store(fleet_state: str, api: Mapping[str, Any] | None = None) -> RecordStore:
    """Open the records of ``fleet_state``, a directory or ``gs://bucket/prefix``.

    ``api`` is the inventory's variable tpu_api, with the endpoint and credentials for a bucket.
    Raises RecordError.
    """
    if not fleet_state.startswith("gs://"):
        return RecordFolder(fleet_state)
    try:
        url = f"{fleet_state.rstrip('/')}/runs"
        return RecordBucket(Bucket.of(url, api or {}, retry=SMALL_OBJECT_RETRY))
    except CloudError as error:
        raise RecordError(f"fleet_state: {error}") from None
