"""Opens the stored output of runs, in a bucket and in a directory of the controller."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ...module_utils.cloud.storage import StoredObject
from ...module_utils.worker.launch_spec import LaunchSpec
from .objects import OutputStore, open_store


class RunOutputs:
    """The stored output of all runs. Thread-safe.

    Args:
        directory: the directory with the output of runs that were launched without a bucket.
        cache_dir: a directory for copies of data from buckets. It may be deleted.
        api: the inventory's variable ``tpu_api``.
    """

    def __init__(self, directory: str, cache_dir: str, api: Mapping[str, Any]) -> None:
        self.segments = Path(cache_dir).expanduser() / "segments"
        """The directory with copies of segments from buckets."""
        self.summaries = Path(cache_dir).expanduser() / "summaries"
        """The directory with a summary of each run's output (summary_cache.py)."""
        self._directory = directory
        self._open = cache(lambda location: open_store(location, api, self.segments))

    def store_of(self, launch: LaunchSpec) -> OutputStore:
        """Open the stored output of a run; ``launch`` is its last launch. Raises OutputError.

        If the last launch stores output in a bucket, the directory is read, too, because earlier
        attempts may have been launched without a bucket.
        """
        directory, location = self._open(self._directory), launch.outputs.rpartition("/")[0]
        return BucketAndDirectory(self._open(location), directory) if location else directory


class BucketAndDirectory:
    """Stored output of a run with some attempts in a bucket and others in a directory."""

    def __init__(self, bucket: OutputStore, directory: OutputStore) -> None:
        self.location = bucket.location
        self._bucket, self._directory = bucket, directory
        self._in_directory: frozenset[str] = frozenset()

    def list(self, run: str) -> list[StoredObject]:
        """List the objects of a run, sorted by name. Raises OutputError.

        If an attempt is both in the bucket and in the directory, only its objects in the bucket are
        listed.
        """
        in_bucket = self._bucket.list(run)
        attempts = {_attempt_of(stored) for stored in in_bucket}
        in_directory = [
            stored for stored in self._directory.list(run) if _attempt_of(stored) not in attempts
        ]
        self._in_directory = frozenset(stored.name for stored in in_directory)
        self.location = (
            self._bucket if in_bucket or not in_directory else self._directory
        ).location
        return sorted(in_bucket + in_directory, key=lambda stored: stored.name)

    def read(self, stored: StoredObject, is_final: bool = False) -> bytes:
        """Return the content of a listed object. Raises OutputError."""
        is_in_directory = stored.name in self._in_directory
        return (self._directory if is_in_directory else self._bucket).read(stored, is_final)


def _attempt_of(stored: StoredObject) -> str:
    return stored.name.split("/")[1]
