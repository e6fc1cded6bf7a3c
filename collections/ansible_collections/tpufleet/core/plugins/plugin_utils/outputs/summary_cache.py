"""Cache of summaries of stored output on the controller, so that old output is not read again.

The cache may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..replaced_file import replace_file
from .reader import stored_processes
from .summary import CURVES, RunOutput, summary_of

if TYPE_CHECKING:
    from ...module_utils.cloud.storage import StoredObject
    from .objects import OutputStore

FORMAT = 3
"""Version of the cached summaries. Increase it if the code summarizes old output differently."""


def cached_summary(
    store: OutputStore, run: str, objects: Sequence[StoredObject], cache: Path
) -> RunOutput:
    """Return the summary of a run's stored output. Raises OutputError.

    ``objects`` are all objects of the run. If their names, sizes and versions have not changed, the
    summary is read from the directory ``cache``.
    """
    key, path = _key(store, objects), cache / f"{run}.json"
    try:
        cached_key, _, text = path.read_bytes().partition(b"\n")
        if cached_key.decode() == key:
            return RunOutput.from_json(text)
    except (OSError, ValueError, TypeError, KeyError):
        pass  # the cached summary is missing or invalid
    summary = summary_of(store, run, stored_processes(objects))
    # A cache that can't be written is no error: the next call summarizes the output again.
    with suppress(OSError):
        replace_file(path, f"{key}\n{summary.to_json()}".encode())
    return summary


def _key(store: OutputStore, objects: Sequence[StoredObject]) -> str:
    versions = [(stored.name, stored.size, stored.generation) for stored in objects]
    text = json.dumps([FORMAT, sorted(CURVES.items()), store.location, versions])
    return hashlib.sha256(text.encode()).hexdigest()
