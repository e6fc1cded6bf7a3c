"""Time that a run spent in steps that no later attempt repeated, from its metrics and its log.

Compilation, waiting and the time between attempts are not included.
"""

from __future__ import annotations

import calendar
import errno
import json
import os
import re
import time
from pathlib import Path
from typing import IO, NamedTuple

from .contract import ATTEMPT_START
from .safe_files import open_file

MAX_LINE_BYTES = 1 << 16
MAX_INVALID_LINES = 1000
"""A search stops after this number of consecutive lines that are not metrics."""
MAX_LOG_BYTES = 1 << 26
"""Maximum size of a log in bytes; a longer log is not searched for starts of attempts."""
STEP_LIMIT = 1 << 63
"""Valid steps are below this number."""
TIME_LIMIT_S = 1 << 33
"""Valid times, in unix seconds, are below this number (the year 2242)."""
_ATTEMPT = re.compile(rf"^{ATTEMPT_START.pattern}".encode(), re.MULTILINE)


class Line(NamedTuple):
    """A line of metrics.jsonl at byte offsets ``start`` to ``end``; ``time`` is in unix seconds."""

    start: int
    end: int
    step: int
    time: float


def progress(folder: Path) -> dict[str, float] | None:
    """Return the ``first`` and ``last`` step of a run's metrics, and its useful time, ``counted``.

    ``counted`` is the time in seconds spent in steps that no later attempt repeated. Returns None
    if the log or the metrics are missing, if the last step is not higher than the first, or if the
    log is too long. A binary search finds where each attempt begins, because times only increase in
    the metrics.
    """
    try:
        starts = _starts(folder / "log")
        with open_file(folder / "metrics.jsonl") as stream:
            size = stream.seek(0, os.SEEK_END)
            bounds = [0, *(_offset_at_time(stream, size, start) for start in starts[1:]), size]
            pairs = [_stretch(stream, *pair) for pair in zip(bounds, bounds[1:])]  # noqa: B905, RUF007
    except OSError:
        return None
    stretches = [pair for pair in pairs if pair]
    if not stretches:
        return None
    counted = 0.0
    for index, (first, last) in enumerate(stretches):
        next_start = stretches[index + 1][0].step if index + 1 < len(stretches) else last.step + 1
        steps = last.step - first.step
        # Do not count steps that the next attempt repeated.
        counted_steps = max(0, min(last.step, next_start - 1) - first.step)
        counted += (last.time - first.time) * counted_steps / steps if steps > 0 else 0.0
    first, last = stretches[0][0], stretches[-1][1]
    if last.step <= first.step:
        return None
    return {"first": first.step, "last": last.step, "counted": round(counted, 3)}


def _starts(log: Path) -> list[float]:
    """Return when the attempts of a run began, according to its log. Raises OSError."""
    with open_file(log) as stream:
        if os.fstat(stream.fileno()).st_size > MAX_LOG_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(log))
        text = stream.read(MAX_LOG_BYTES)
    starts = []
    for stamp in _ATTEMPT.findall(text):
        try:
            starts.append(calendar.timegm(time.strptime(stamp.decode(), "%Y-%m-%dT%H:%M:%SZ")))
        except (ValueError, OverflowError):  # a trainer's line that looks like an attempt's start
            continue
    return sorted(starts)


def _stretch(stream: IO[bytes], begin: int, end: int) -> tuple[Line, Line] | None:
    """Return the first and last valid line of metrics between two offsets; None without any."""
    first = _line(stream, begin, end)
    return (first, _last_before(stream, end, first)) if first else None


def _offset_at_time(stream: IO[bytes], size: int, moment: float) -> int:
    """Return the offset of the first line of metrics whose time is ``moment`` or later.

    A binary search finds it, because times only increase. Without such a line, returns ``size``.
    """
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        line = _line(stream, middle, size)
        if line and line.time < moment:
            low = line.end
        else:
            high = middle
    line = _line(stream, low, size)
    return line.start if line else size


def _line(stream: IO[bytes], offset: int, end: int) -> Line | None:
    """Return the first valid line of metrics that begins at ``offset`` or later, before ``end``."""
    stream.seek(max(0, offset - 1))
    if offset:
        stream.readline(MAX_LINE_BYTES)
    for _ in range(MAX_INVALID_LINES):
        start = stream.tell()
        if start >= end:
            break
        line = _read(stream.readline(MAX_LINE_BYTES), start)
        if line:
            return line
    return None


def _last_before(stream: IO[bytes], end: int, default: Line) -> Line:
    """Return the last valid line of metrics that ends at or before ``end``, else ``default``."""
    begin = max(default.start, end - MAX_LINE_BYTES)
    stream.seek(begin)
    offset, line = begin, default
    for text in stream.read(end - begin).splitlines(keepends=True):
        line = _read(text, offset) or line
        offset += len(text)
    return line


def _read(text: bytes, start: int) -> Line | None:
    """Parse a line of metrics; None if it is incomplete, invalid or has a number out of range."""
    try:
        record = json.loads(text) if text.endswith(b"\n") else {}
        line = Line(start, start + len(text), int(record["step"]), float(record["time"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    is_possible = 0 <= line.step < STEP_LIMIT and 0 <= line.time < TIME_LIMIT_S
    return line if is_possible else None
