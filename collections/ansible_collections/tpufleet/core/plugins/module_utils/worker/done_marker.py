"""The file that marks a run as done, beside its checkpoints.

`roles/run/files/attempt_done` writes it when an attempt has finished the run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .bucket_objects import bucket_content, has_own_key
from .contract import DONE_MARKER
from .safe_files import read_json

MAX_BYTES = 4096
CLOCK_SKEW_S = 60.0
"""How much the clocks of a worker and a controller may differ, in seconds."""


class DoneMarker(NamedTuple):
    """The attempt that finished a run, and the ``time`` when it ended, in unix seconds."""

    run: str
    attempt: int
    time: float

    def is_of(self, attempt: int, launched_at: float) -> bool:
        """Return whether an attempt that was launched at ``launched_at`` wrote this marker.

        Otherwise the marker is of an older run of this name, whose record was deleted or is on
        another controller.
        """
        return self.attempt == attempt and self.time > launched_at - CLOCK_SKEW_S


def parse_marker(value: object, run: str) -> DoneMarker | None:
    """Validate a marker; return None if it is malformed or belongs to another run."""
    if not isinstance(value, Mapping) or value.get("run") != run:
        return None
    attempt, time = value.get("attempt"), value.get("time")
    if type(attempt) is not int or attempt < 1 or type(time) not in (int, float):
        return None
    try:
        return DoneMarker(run, attempt, float(time)) if math.isfinite(time) else None
    except OverflowError:
        return None


def parse_text(text: bytes, run: str) -> DoneMarker | None:
    """Parse the JSON of a marker; return None if it is malformed or belongs to another run."""
    try:
        return parse_marker(json.loads(text), run) if len(text) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        return None


def read_marker(checkpoints: str, run: str, env: Mapping[str, str]) -> DoneMarker | None:
    """Return the marker beside a run's checkpoints; None if there is none.

    ``env`` are the trainer's variables, which may name an emulator of Cloud Storage or a key file.
    With a key file, a marker in a bucket is not read and the result is None, because the bucket may
    refuse this worker's service account. Raises OSError or ValueError if a bucket cannot be read.
    """
    if not checkpoints.startswith("gs://"):
        return parse_marker(read_json(Path(checkpoints) / DONE_MARKER, MAX_BYTES), run)
    if has_own_key(env):
        return None
    text = bucket_content(f"{checkpoints.rstrip('/')}/{DONE_MARKER}", env, MAX_BYTES + 1)
    return None if text is None else parse_text(text, run)
