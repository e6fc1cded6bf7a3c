"""A run's metrics.jsonl, read into the points of its curves. Python 3.9; it runs on workers.

The lines are those of the run contract (docs/trainer.md): step, loss, time in unix seconds,
tokens_per_second, now and then heldout_loss. A foreign trainer may leave any of them out.
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

MOST_POINTS = 1000
"""Points of one curve: where there are more steps, each point is the mean of some."""
_ATTEMPT = re.compile(rb"^--- (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) attempt (\d{1,9})\b", re.MULTILINE)
_COLUMNS = ("step", "loss", "time", "tokens_per_second", "heldout_loss")

_MAX_LINE_BYTES = 1 << 16

Points = list[tuple[float, float]]


class Rows:
    """Columns of numbers, a row a step, steps rising; what is no number is not-a-number."""

    def __init__(self) -> None:
        self.columns = {name: array("d") for name in _COLUMNS}

    def __len__(self) -> int:
        return len(self.columns["step"])

    def add(self, record: object) -> None:
        """Take a line's object; of a step that was there already the later one stays.

        An attempt that went on from a checkpoint has undone what an earlier one did behind it.
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
    """Read the whole lines of a file; a damaged one is passed over. Raises OSError."""
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
    """Give at most so many points: where there are more, the means of equally many each."""
    each = -(-len(points) // most)
    if each <= 1:
        return list(points)
    parts = [points[start : start + each] for start in range(0, len(points), each)]
    return [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts
    ]


def curve(rows: Rows, column: str, most: int = MOST_POINTS) -> Points:
    """Give the points (step, value) of a column; steps without a number have none."""
    pairs = zip(rows.columns["step"], rows.columns[column])  # noqa: B905 - Python 3.9
    return thinned([(step, value) for step, value in pairs if math.isfinite(value)], most)


def gaps(rows: Rows, column: str, most: int = MOST_POINTS) -> list[float]:
    """Give the steps at which a column has no number between two that have one, a step a gap."""
    found: list[float] = []
    before = math.nan
    for step, value in zip(rows.columns["step"], rows.columns[column]):  # noqa: B905 - Python 3.9
        if math.isfinite(before) and not math.isfinite(value):
            found.append(step)
        before = value
    return found[-most:]


def stretches(rows: Rows, starts: Iterable[float]) -> list[list[float]]:
    """Give the times, first and last, between which steps came without a new start between them."""
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
    """Find the starts of attempts in a run's log: ``{attempt, time}`` each, in this order."""
    try:
        with open_file(log) as stream:
            text = stream.read(most)
    except OSError:
        return []
    found = []
    for stamp, number in _ATTEMPT.findall(text):
        try:
            started = float(_seconds(stamp.decode()))
        except (ValueError, OverflowError):  # a line of the trainer's own, with no such date
            continue
        found.append({"attempt": int(number), "time": started})
    return found


def summary(folder: Path, most: int = MOST_POINTS) -> dict:
    """Give all that a picture of the run needs from its directory; empty without metrics."""
    starts = attempts(folder / "log")
    try:
        rows = read(folder / "metrics.jsonl")
    except OSError:
        rows = Rows()
    told: dict = {"attempts": starts, "rows": len(rows)}
    if len(rows):
        last = {name: _plain(column[-1]) for name, column in rows.columns.items()}
        told |= {
            "loss": curve(rows, "loss", most),
            "gaps": gaps(rows, "loss", most),
            "heldout": curve(rows, "heldout_loss", most),
            "rate": curve(rows, "tokens_per_second", most),
            "last": last,
            "work": stretches(rows, [start["time"] for start in starts]),
        }
    return told


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
