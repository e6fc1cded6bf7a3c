"""The marker beside a run's checkpoints that says it is done, as its last attempt left it.

`roles/run/files/attempt_done` writes it. Python 3.9, standard library: this runs on workers too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .contract import DONE_MARKER
from .run_checkpoints import bucket_content
from .safe_files import read_json

MAX_BYTES = 4096


class DoneMarker(NamedTuple):
    """Which attempt of a run ended with 0, and when, in unix seconds."""

    run: str
    attempt: int
    time: float


def parse_marker(value: object, run: str) -> DoneMarker | None:
    """Validate a marker; None for one of another run, and for anything that is no marker."""
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
    """Parse and validate a marker's content; None for what is no marker of this run."""
    try:
        return parse_marker(json.loads(text), run) if len(text) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        return None


def read_marker(checkpoints: str, run: str, env: Mapping[str, str]) -> DoneMarker | None:
    """Read the marker of a run from here; None if there is none. Raises OSError for a bucket.

    ``env`` is the trainer's, for the bucket's emulator. A bucket that the trainer reaches by a key
    file of its own is not asked.
    """
    if not checkpoints.startswith("gs://"):
        return parse_marker(read_json(Path(checkpoints) / DONE_MARKER, MAX_BYTES), run)
    if env.get("GOOGLE_APPLICATION_CREDENTIALS") and not env.get("STORAGE_EMULATOR_HOST"):
        return None
    text = bucket_content(f"{checkpoints.rstrip('/')}/{DONE_MARKER}", env, MAX_BYTES + 1)
    return None if text is None else parse_text(text, run)
