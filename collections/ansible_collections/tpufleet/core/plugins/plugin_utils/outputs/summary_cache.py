"""Cache of summaries on the controller, so that output which has not changed is not read again.

The cache may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...module_utils.cloud.storage import StoredObject
from .objects import OutputError, OutputStore, replace
from .reader import stored_processes
from .summary import CURVES, RunOutput, summary_of

FORMAT = 2
"""Version of the cached summaries. Increase it when a summary of the same output changes."""


def cached_summary(
    store: OutputStore, run: str, objects: Sequence[StoredObject], cache: Path
) -> RunOutput:
    """Return the summary of a run, from ``cache`` if its listed objects have not changed.

    Raises OutputError.
    """
    key, path = _key(store, objects), cache / f"{run}.json"
    try:
        head, _, text = path.read_bytes().partition(b"\n")
        if head.decode() == key:
            return RunOutput.from_json(text)
    except (OSError, ValueError, TypeError, KeyError):
        pass  # missing, or of another version
    found = summary_of(store, run, stored_processes(objects))
    with suppress(OutputError):  # a full disk makes the next time slow, nothing else
        replace(path, f"{key}\n{found.to_json()}".encode())
    return found


def _key(store: OutputStore, objects: Sequence[StoredObject]) -> str:
    listed = [(each.name, each.size, each.generation) for each in objects]
    told = json.dumps([FORMAT, sorted(CURVES.items()), store.location, listed])
    return hashlib.sha256(told.encode()).hexdigest()
