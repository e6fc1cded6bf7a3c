"""Points of a run's curves, from its metrics.jsonl. Python 3.9, because workers import this file.

The fields of a line follow the run contract (docs/own_trainer.md). Only the step is required.
"""

from __future__ import annotations

import calendar
import json
import math
import re
import time
from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from .safe_files import open_file

#: Maximum number of points of a curve; with more steps, each point is the mean of several.
MOST_POINTS = 1000
_ATTEMPT = re.compile(rb"^--- (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) attempt (\d{1,9})\b", re.MULTILINE)
_COLUMNS = (
    *("step", "loss", "time", "tokens_per_second", "heldout_loss", "mfu"),
    *("device_bytes", "device_limit_bytes", "save_seconds", "start_seconds"),
)

_MAX_LINE_BYTES = 1 << 16

Points = list[tuple[float, float]]


class Rows:
    """Columns of numbers with one row per step, in order of steps; missing numbers are NaN."""

    def __init__(self) -> None:
        self.columns = {name: array("d") for name in _COLUMNS}

    def __len__(self) -> int:
        return len(self.columns["step"])

    def add(self, record: object) -> None:
        """Add the record of a line, replacing rows of the same and later steps.

        An attempt that resumes from a checkpoint repeats the steps after the checkpoint.
        """
        if not isinstance(record, dict):
            return
        step = _number(record.get("step"))
        if math.isnan(step):
            return
        steps = self.columns["step"]
        while steps and steps[-1] >= step:
            for column in self.columns.values():
                column.pop()
        for name, column in self.columns.items():
            column.append(_number(record.get(name)))


def read(path: Path) -> Rows:
    """Parse the complete lines of a metrics file, skipping invalid ones. Raises OSError."""
    rows = Rows()
    with open_file(path) as stream:
        for line in iter(partial(stream.readline, _MAX_LINE_BYTES), b""):
            if line.endswith(b"\n"):
                try:
                    rows.add(json.loads(line))
                except (ValueError, RecursionError):
                    continue
    return rows


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> Points:
    """Return at most ``most`` points, each the mean of the same number of points."""
    each = -(-len(points) // most)
    if each <= 1:
        return list(points)
    parts = [points[start : start + each] for start in range(0, len(points), each)]
    return [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts
    ]


def curve(rows: Rows, column: str, most: int = MOST_POINTS) -> Points:
    """Return a column's points (step, value) without NaN, at most ``most``."""
    pairs = zip(rows.columns["step"], rows.columns[column])  # noqa: B905 - Python 3.9
    return thinned([(step, value) for step, value in pairs if math.isfinite(value)], most)


def gaps(rows: Rows, column: str, most: int = MOST_POINTS) -> list[float]:
    """Return the steps at which a column becomes NaN, one for each of the last ``most`` gaps."""
    found: list[float] = []
    before = math.nan
    for step, value in zip(rows.columns["step"], rows.columns[column]):  # noqa: B905 - Python 3.9
        if math.isfinite(before) and not math.isfinite(value):
            found.append(step)
        before = value
    return found[-most:]


def stretches(rows: Rows, starts: Iterable[float]) -> list[list[float]]:
    """Split the rows' times at ``starts``; return the interval [first, last] of each part.

    All times are in unix seconds.
    """
    borders = sorted(starts)
    found: list[list[float]] = []
    place = 0
    for moment in rows.columns["time"]:
        if not math.isfinite(moment):
            continue
        began = place
        while place < len(borders) and borders[place] <= moment:
            place += 1
        if found and place == began:
            found[-1][1] = max(moment, found[-1][1])
        else:
            found.append([moment, moment])
    return found


def attempts(log: Path, most: int = 1 << 26) -> list[dict[str, float]]:
    """Return the starts of attempts in a run's log, in order, each as ``{attempt, time}``."""
    try:
        with open_file(log) as stream:
            text = stream.read(most)
    except OSError:
        return []
    found = []
    for stamp, number in _ATTEMPT.findall(text):
        try:
            started = float(_seconds(stamp.decode()))
        except (ValueError, OverflowError):  # a line of the trainer, without a valid date
            continue
        found.append({"attempt": int(number), "time": started})
    return found


def summary(folder: Path, most: int = MOST_POINTS) -> dict:
    """Return a report's data from a run's directory; without metrics, only its attempts."""
    starts = attempts(folder / "log")
    try:
        rows = read(folder / "metrics.jsonl")
    except OSError:
        rows = Rows()
    found: dict = {"attempts": starts, "rows": len(rows)}
    if len(rows):
        last = {name: _plain(column[-1]) for name, column in rows.columns.items()}
        found |= {
            "loss": curve(rows, "loss", most),
            "gaps": gaps(rows, "loss", most),
            "heldout": curve(rows, "heldout_loss", most),
            "rate": curve(rows, "tokens_per_second", most),
            "last": last,
            "work": stretches(rows, [start["time"] for start in starts]),
        }
    return found


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _seconds(stamp: str) -> int:
    return calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))
