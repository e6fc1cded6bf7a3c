"""Functions that read the end of a run's log, or the lines after an offset."""

from __future__ import annotations

import os
from pathlib import Path

from .safe_files import open_file


def tail(path: Path, lines: int, most: int = 1 << 18) -> list[str]:
    """Return the last ``lines`` lines of a log, read from at most its last ``most`` bytes."""
    text = _end(path, most)[1].decode("utf-8", errors="replace") if lines > 0 else ""
    return text.splitlines()[-lines:]


def log_since(path: Path, since: int, most: int = 1 << 18) -> tuple[list[str], int]:
    """Return the complete lines of a log after the byte offset ``since``, and the next offset.

    Reads at most ``most`` bytes. A log that is now shorter than the offset is read from its start.
    """
    try:
        with open_file(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            start = since if 0 <= since <= size else 0
            stream.seek(start)
            data = stream.read(most)
    except OSError:
        return [], 0
    # A line longer than ``most`` is returned in parts, so that the offset always advances.
    whole = data if len(data) == most and b"\n" not in data else data[: data.rfind(b"\n") + 1]
    return whole.decode("utf-8", errors="replace").splitlines(), start + len(whole)


def log_start(path: Path, lines: int, most: int = 1 << 18) -> int:
    """Return the byte offset at which the last ``lines`` complete lines of a log begin.

    Only the last ``most`` bytes of the log are searched.
    """
    start, data = _end(path, most)
    ends = [place for place, sign in enumerate(data) if sign == 10]
    if len(ends) <= lines:
        return start if start == 0 or not ends else start + ends[0] + 1
    return start + ends[-lines - 1] + 1


def _end(path: Path, most: int) -> tuple[int, bytes]:
    """Return the offset of the last ``most`` bytes of a file, and these; 0 and b"" on an error."""
    try:
        with open_file(path) as stream:
            start = stream.seek(max(0, stream.seek(0, os.SEEK_END) - most))
            return start, stream.read()
    except OSError:
        return 0, b""
