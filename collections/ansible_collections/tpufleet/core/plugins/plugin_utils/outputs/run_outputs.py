"""Access to the stored output of runs, in the bucket of a run's record or in a directory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ...module_utils.worker.launch_spec import LaunchSpec
from .objects import OutputStore, open_store


class RunOutputs:
    """The stored output of all runs. Thread-safe.

    Args:
        directory: where the controller stores the output of runs that store none themselves.
        cache: a directory for what has been read.
        api: the inventory's tpu_api.
    """

    def __init__(self, directory: str, cache_dir: str, api: Mapping[str, Any]) -> None:
        self.cache = Path(cache_dir).expanduser()
        self._directory = directory
        self._open = cache(lambda location: open_store(location, api, self.segments))

    @property
    def segments(self) -> Path:
        """The cache of full segments of buckets."""
        return self.cache / "segments"

    @property
    def summaries(self) -> Path:
        """The cache of summaries."""
        return self.cache / "summaries"

    def store_of(self, launch: LaunchSpec) -> OutputStore:
        """Open the location of a run's output. Raises OutputError."""
        return self._open(launch.outputs.rpartition("/")[0] or self._directory)
