"""Access to the objects of stored output, in a directory or in a bucket.

The content comes from workers, so it is not trusted: objects are ignored if they are compressed,
larger than SEGMENT_BYTES, or have a name that module_utils/worker/output_stream.py does not
describe.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from ...module_utils.cloud.errors import CloudError, Forbidden, NoAnswer, NotFound, Unauthorized
from ...module_utils.cloud.storage import SCHEME, Bucket, StoredObject
from ...module_utils.worker.contract import RUN_NAME
from ...module_utils.worker.os_errors import os_error_text
from ...module_utils.worker.output_stream import OBJECT_NAME, SEGMENT_BYTES
from ...module_utils.worker.run import RunError, check_name
from ..replaced_file import replace_file

MAX_OBJECTS = 200_000
"""Maximum number of objects of a run; if there are more, its output is not read."""
MIN_FREE_BYTES = 1 << 30
"""Bytes of the controller's disk that stored output must leave free, for run records."""
CACHE_BYTES = 1 << 30
"""Maximum size in bytes of the cache of segments that no longer change."""
_READ_TRIES = 5
_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_NAME = re.compile(rf"{_NUMBER}/{_NUMBER}/(?:{OBJECT_NAME.pattern})")


class OutputError(Exception):
    """The stored output cannot be read or written; the message is one line."""


class InvalidObjectError(OutputError):
    """The name or the size of an object is invalid."""


class OutputStore(Protocol):
    """Stored output at a location: a directory or a bucket. Thread-safe."""

    location: str

    def list(self, run: str) -> list[StoredObject]:
        """List the valid objects of a run, sorted by name. Raises OutputError.

        Their names begin with ``RUN/``.
        """

    def read(self, stored: StoredObject, is_final: bool = False) -> bytes:
        """Return the content of an object that list() returned, at most SEGMENT_BYTES.

        If the object was replaced after list(), returns the new content; if it was removed, returns
        no content. ``is_final`` says that the object never changes, so its content may be cached.
        Raises OutputError.
        """


def open_store(location: str, api: Mapping[str, Any], cache: Path) -> OutputStore:
    """Open the stored output at ``location``: a directory, or ``gs://bucket/prefix``.

    ``api`` is the inventory's variable ``tpu_api``. ``cache`` is a directory for copies of those
    segments of a bucket that no longer change. Raises OutputError.
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
        objects: list[StoredObject] = []
        run_folder = self._folder / checked_name(run)
        try:
            for folder, _, names in run_folder.walk(on_error=_raise_unless_missing):
                for path in (folder / name for name in names):
                    with suppress(FileNotFoundError):
                        info = path.lstat()
                        if stat.S_ISREG(info.st_mode):
                            name = str(path.relative_to(self._folder))
                            objects.append(StoredObject(name, info.st_size, info.st_mtime_ns))
        except OSError as error:
            raise OutputError(os_error_text(error)) from None
        return readable(self.location, run, objects)

    def read(self, stored: StoredObject, is_final: bool = False) -> bytes:
        """Return the content of a listed object. Raises OutputError."""
        # ``is_final`` says whether the content may be cached; a directory needs no cache.
        del is_final
        try:
            with (self._folder / stored.name).open("rb") as stream:
                return stream.read(SEGMENT_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise OutputError(os_error_text(error)) from None

    def write(self, name: str, content: bytes) -> None:
        """Write an object atomically, which replaces an old one of this name.

        Raises OutputError; InvalidObjectError if the name or the size is invalid.
        """
        run, _, object_name = name.partition("/")
        is_valid = RUN_NAME.fullmatch(run) and _NAME.fullmatch(object_name)
        if not is_valid or len(content) > SEGMENT_BYTES:
            raise InvalidObjectError(
                f"{self.location}: refused an object whose name or size is invalid ({name!r:.200})"
            )
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(self._folder).free
            if free < MIN_FREE_BYTES:
                raise OutputError(
                    f"{self.location}: new output is not stored, because less than 1 GiB is free "
                    f"on its disk ({free >> 20} MiB). Delete the output of runs that you no "
                    f"longer need: rm -r {self.location}/RUN"
                )
            replace_file(self._folder / run / object_name, content)
        except OSError as error:
            raise OutputError(os_error_text(error)) from None


class OutputBucket:
    """Stored output in a bucket.

    Segments that no longer change are cached in a directory of this controller.
    """

    def __init__(self, bucket: Bucket, cache: Path) -> None:
        self.location, self._bucket, self._cache = bucket.url, bucket, cache
        self._error = ""
        """Why the bucket can't be read; once set, every call fails with this error at once."""

    def list(self, run: str) -> list[StoredObject]:
        """List the objects of a run. Raises OutputError."""
        with self._converting_errors():
            objects = self._bucket.list(start=f"{checked_name(run)}/", most=MAX_OBJECTS + 1)
            return readable(self.location, run, objects)

    def read(self, stored: StoredObject, is_final: bool = False) -> bytes:
        """Return the content of a listed object. Raises OutputError."""
        key = f"{self._bucket.url}/{stored.name}#{stored.generation}"
        cached = self._cache / hashlib.sha256(key.encode()).hexdigest()
        if is_final:
            with suppress(OSError):
                return cached.read_bytes()
        content = self._download(stored)
        if is_final and len(content) == stored.size:
            # A cache that can't be written is no error: the next read downloads the content again.
            with suppress(OSError):
                replace_file(cached, content)
        return content

    def _download(self, stored: StoredObject) -> bytes:
        with self._converting_errors():
            for _ in range(_READ_TRIES):
                try:
                    return self._bucket.content(stored.name, generation=stored.generation)
                except NotFound:
                    run = stored.name.partition("/")[0]
                    objects = self._bucket.list(start=stored.name, most=1)
                    valid_objects = readable(self.location, run, objects)
                    if not valid_objects:
                        return b""
                    stored = valid_objects[0]
        raise OutputError(
            f"{self.location}/{stored.name}: replaced during each of {_READ_TRIES} reads. Try again"
        )

    @contextmanager
    def _converting_errors(self) -> Iterator[None]:
        if self._error:
            raise OutputError(self._error)
        try:
            yield
        except CloudError as error:
            if isinstance(error, NoAnswer | Unauthorized | Forbidden):
                self._error = str(error)
            raise OutputError(str(error)) from None


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def readable(location: str, run: str, objects: Sequence[StoredObject]) -> list[StoredObject]:
    """Return the valid objects of the run at a location, sorted by name.

    An object is invalid if its name is not that of an object of this run, if it is larger than
    SEGMENT_BYTES, or if it is compressed. Raises OutputError if there are more than MAX_OBJECTS.
    """
    if len(objects) > MAX_OBJECTS:
        raise OutputError(
            f"{location}/{run}: more than {MAX_OBJECTS:,} objects. Delete objects that you do "
            "not need"
        )
    prefix = f"{run}/"
    return sorted(
        (
            stored
            for stored in objects
            if stored.name.startswith(prefix)
            and _NAME.fullmatch(stored.name[len(prefix) :])
            and stored.size <= SEGMENT_BYTES
            and not stored.encoding
        ),
        key=lambda stored: stored.name,
    )


def checked_name(run: str) -> str:
    """Return ``run`` if it is a valid name of a run, else raise OutputError."""
    try:
        return check_name(run)
    except RunError as error:
        raise OutputError(str(error)) from None


def trim(cache: Path) -> None:
    """Remove the oldest files of a cache until it has at most CACHE_BYTES."""
    try:
        files = [(path.stat(), path) for path in cache.iterdir() if path.is_file()]
    except OSError:
        return
    size = sum(info.st_size for info, _ in files)
    for info, path in sorted(files, key=lambda file: file[0].st_mtime):
        if size <= CACHE_BYTES:
            return
        with suppress(OSError):
            path.unlink()
            size -= info.st_size
