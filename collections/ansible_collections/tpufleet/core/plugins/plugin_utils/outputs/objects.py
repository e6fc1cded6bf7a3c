"""The objects of the stored output, in a directory or in a bucket, with one interface.

Workers write these objects, so their names and sizes are checked: an object that is larger than a
segment, compressed, or has another name than module_utils/worker/output_stream.py describes is left
out.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from ...module_utils.cloud.errors import CloudError, Forbidden, NoAnswer, NotFound, Unauthorized
from ...module_utils.cloud.storage import SCHEME, Bucket, StoredObject
from ...module_utils.worker.contract import RUN_NAME
from ...module_utils.worker.output_stream import OBJECT_NAME, SEGMENT_BYTES
from ...module_utils.worker.run import RunError, check_name

MOST_OBJECTS = 200_000
"""Maximum number of objects of a run that are read."""
LEAST_FREE = 1 << 30
"""Free bytes on the controller's disk below which nothing is stored there: run records need it."""
CACHE_BYTES = 1 << 30
"""Maximum size of the cache of final segments."""
_READ_TRIES = 5
_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_NAME = re.compile(rf"{_NUMBER}/{_NUMBER}/(?:{OBJECT_NAME.pattern})")


class OutputError(Exception):
    """The stored output cannot be read or written; the text is one line for the user."""


class InvalidObjectError(OutputError):
    """The name or the size of an object is not one that workers store."""


class OutputStore(Protocol):
    """Interface of a location of stored output. Thread-safe."""

    location: str

    def list(self, run: str) -> list[StoredObject]:
        """List the objects of a run; their names begin with the run's. Raises OutputError."""

    def read(self, stored: StoredObject, is_final: bool = False) -> bytes:
        """Return the content of a listed object, at most SEGMENT_BYTES.

        Returns the newer content if the object has been replaced meanwhile, and nothing if it has
        been removed. ``is_final``: it does not change, so it may be cached. Raises OutputError.
        """


def open_store(location: str, api: Mapping[str, Any], cache: Path) -> OutputStore:
    """Open the stored output at ``location``: a directory, or ``gs://bucket/prefix``.

    ``api`` is the inventory's tpu_api, ``cache`` a directory for final segments of a bucket. Raises
    OutputError.
    """
    if not location.startswith(SCHEME):
        return OutputDirectory(Path(location).expanduser())
    try:
        return OutputBucket(Bucket.of(location, api), cache)
    except CloudError as error:
        raise OutputError(str(error)) from None


class OutputDirectory:
    """Stored output in a directory of this controller."""

    def __init__(self, folder: Path) -> None:
        self.location, self._folder = str(folder), folder

    def list(self, run: str) -> list[StoredObject]:
        """List the objects of a run. Raises OutputError."""
        found: list[StoredObject] = []
        try:
            for folder, _, names in (self._folder / checked(run)).walk(on_error=_unless_missing):
                for path in (folder / name for name in names):
                    with suppress(FileNotFoundError):
                        told = path.lstat()
                        if stat.S_ISREG(told.st_mode):
                            name = str(path.relative_to(self._folder))
                            found.append(StoredObject(name, told.st_size, told.st_mtime_ns))
        except OSError as error:
            raise OutputError(f"{error.filename}: {error.strerror}") from None
        return readable(run, complete(f"{self.location}/{run}", found))

    def read(self, stored: StoredObject, is_final: bool = False) -> bytes:
        """Return the content of a listed object. Raises OutputError."""
        del is_final  # a directory needs no cache
        try:
            with (self._folder / stored.name).open("rb") as stream:
                return stream.read(SEGMENT_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise OutputError(f"{error.filename}: {error.strerror}") from None

    def write(self, name: str, content: bytes) -> None:
        """Replace an object atomically. Raises OutputError."""
        run, _, rest = name.partition("/")
        is_valid = RUN_NAME.fullmatch(run) and _NAME.fullmatch(rest)
        if not is_valid or len(content) > SEGMENT_BYTES:
            raise InvalidObjectError(
                f"{self.location}: refused an object whose name or size is invalid ({name!r:.200})"
            )
        with suppress(OSError):  # the next write names the error
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(self._folder).free
            if free < LEAST_FREE:
                raise OutputError(
                    f"{self.location}: not stored, because less than 1 GiB is free on its disk "
                    f"({free >> 20} MiB). Delete the directories of runs that you no longer need"
                )
        replace(self._folder / run / rest, content)


class OutputBucket:
    """Stored output in a bucket. Final segments are cached in a directory of this controller."""

    def __init__(self, bucket: Bucket, cache: Path) -> None:
        self.location, self._bucket, self._cache = bucket.url, bucket, cache
        self._error = ""
        """Why the bucket can't be read; after that, nothing is asked of it any more."""

    def list(self, run: str) -> list[StoredObject]:
        """List the objects of a run. Raises OutputError."""
        with self._errors():
            found = self._bucket.list(start=f"{checked(run)}/", most=MOST_OBJECTS + 1)
            return readable(run, complete(f"{self.location}/{run}", found))

    def read(self, stored: StoredObject, is_final: bool = False) -> bytes:
        """Return the content of a listed object. Raises OutputError."""
        key = f"{self._bucket.url}/{stored.name}#{stored.generation}"
        cached = self._cache / hashlib.sha256(key.encode()).hexdigest()
        if is_final:
            with suppress(OSError):
                return cached.read_bytes()
        content = self._download(stored)
        if is_final and len(content) == stored.size:
            with suppress(OutputError):  # a full disk makes the next read slow, nothing else
                replace(cached, content)
        return content

    def _download(self, stored: StoredObject) -> bytes:
        with self._errors():
            for _ in range(_READ_TRIES):
                try:
                    return self._bucket.content(stored.name, generation=stored.generation)
                except NotFound:
                    run = stored.name.partition("/")[0]
                    listed = readable(run, self._bucket.list(start=stored.name, most=1))
                    if not listed:
                        return b""
                    stored = listed[0]
        raise OutputError(
            f"{self.location}/{stored.name}: replaced during each of {_READ_TRIES} reads. Try again"
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if self._error:
            raise OutputError(self._error)
        try:
            yield
        except CloudError as error:
            if isinstance(error, NoAnswer | Unauthorized | Forbidden):
                self._error = str(error)
            raise OutputError(str(error)) from None


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def complete(where: str, found: list[StoredObject]) -> list[StoredObject]:
    """Return a list of objects. Raises OutputError if there are too many to read."""
    if len(found) > MOST_OBJECTS:
        raise OutputError(
            f"{where}: more than {MOST_OBJECTS:,} objects. Delete those that you do not need"
        )
    return found


def readable(run: str, found: Iterable[StoredObject]) -> list[StoredObject]:
    """Return the objects of a run that have a valid name and size, sorted by name."""
    start = f"{run}/"
    return sorted(
        (
            each
            for each in found
            if each.name.startswith(start)
            and _NAME.fullmatch(each.name[len(start) :])
            and each.size <= SEGMENT_BYTES
            and not each.encoding
        ),
        key=lambda each: each.name,
    )


def checked(run: str) -> str:
    """Return the name of a run if it is valid. Raises OutputError."""
    try:
        return check_name(run)
    except RunError as error:
        raise OutputError(str(error)) from None


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically, readable only by this user. Raises OutputError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(f"can't write {path}: {error.strerror}") from None


def trim(cache: Path, most: int = CACHE_BYTES) -> None:
    """Remove the oldest files of a cache until it has at most ``most`` bytes."""
    try:
        files = [(each.stat(), each) for each in cache.iterdir() if each.is_file()]
    except OSError:
        return
    size = sum(told.st_size for told, _ in files)
    for told, path in sorted(files, key=lambda each: each[0].st_mtime):
        if size <= most:
            return
        with suppress(OSError):
            path.unlink()
            size -= told.st_size
