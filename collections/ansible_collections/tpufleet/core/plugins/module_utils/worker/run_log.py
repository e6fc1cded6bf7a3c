"""Functions that read the end of a run's log, or the lines after an offset."""

from __future__ import annotations

import os
from pathlib import Path

from .safe_files import open_file

MAX_READ_BYTES = 1 << 18
"""Maximum number of bytes of a log that one call reads."""


def tail(path: Path, lines: int) -> list[str]:
    """Return the end of a log, at most ``lines`` lines."""
    text = _end(path)[1].decode("utf-8", errors="replace") if lines > 0 else ""
    return text.splitlines()[-lines:]


def log_since(path: Path, since: int) -> tuple[list[str], int]:
    """Return the complete lines of a log after the byte offset ``since``, and the next offset.

    A log that is now shorter than the offset is read from its start.
    """
    try:
        with open_file(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            start = since if 0 <= since <= size else 0
            stream.seek(start)
            data = stream.read(MAX_READ_BYTES)
    except OSError:
        return [], 0
    # A line longer than MAX_READ_BYTES is returned in parts, so that the offset always advances.
    is_partial = len(data) == MAX_READ_BYTES and b"\n" not in data
    complete = data if is_partial else data[: data.rfind(b"\n") + 1]
    return complete.decode("utf-8", errors="replace").splitlines(), start + len(complete)


def log_start(path: Path, lines: int) -> int:
    """Return the byte offset at which the last ``lines`` complete lines of a log begin."""
    start, data = _end(path)
    newlines = [index for index, byte in enumerate(data) if byte == 10]
    if len(newlines) <= lines:
        return start if start == 0 or not newlines else start + newlines[0] + 1
    return start + newlines[-lines - 1] + 1


def _end(path: Path) -> tuple[int, bytes]:
    """Return the last MAX_READ_BYTES of a file and, first, the offset at which they begin.

    Returns ``(0, b"")`` if the file cannot be read.
    """
    try:
        with open_file(path) as stream:
            start = stream.seek(max(0, stream.seek(0, os.SEEK_END) - MAX_READ_BYTES))
            return start, stream.read()
    except OSError:
        return 0, b""
