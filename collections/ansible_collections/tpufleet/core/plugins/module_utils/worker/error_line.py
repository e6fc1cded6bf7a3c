"""Search for the log line that says why a trainer crashed.

Python prints a stack of indented frames, and then the exception. Of several chained exceptions, the
last one ended the program. Notes (PEP 678), such as JAX's "For simplicity, JAX has removed its
internal frames", follow the exception, so the last line of a log may be a note. Native code, such
as libtpu, prints the reason before the stack.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .contract import ATTEMPT_START
from .run_files import CONTROL

MAX_CHARACTERS = 300
_FRAME = re.compile(r'\s+File ".*", line \d+')
_PREFIX = re.compile(r"(\[[\w-]+\]:\s?)?(\s*\|\s?)?")
"""Prefixes of traceback lines by torchrun ("[rank0]: ") and by exception groups ("  | ")."""
_IGNORED = re.compile(
    r"Exception ignored in|.*\(most recent call (last|first)\)|Extension modules: "
)
"""Lines that Python prints before or after the frames of a traceback or of a stack dump."""
_FATAL = re.compile(r"Fatal Python error: ")
_NATIVE_FATAL = re.compile(r"F\d{4} [\d:.]+ +\d+ \S+:\d+\] ")
"""Start of a log line with severity FATAL, as Abseil and glog write it."""
_NATIVE_STACK = re.compile(
    r"\s*(PC: )?(@|#\d+|frame #\d+:)\s.*\b0x[0-9a-f]{6}"
    r"|\*\*\* Check failure stack trace: \*\*\*"
    r"|https://symbolize\.stripped_domain/"
    r"|E\d{4} .*\] RAW: "
)
"""Lines of native stack traces and of libtpu's crash handler. They do not contain the cause."""


def error_line(lines: Sequence[str]) -> str:
    """Return the line with the exception of the last traceback.

    If there is no traceback, returns the last fatal error of native code, else the last line that
    is neither empty nor part of a stack trace, else the last line that is not empty.

    ``lines`` are the last lines of the last attempt's log. Tracebacks are recognized by their
    frames, because the first line of a traceback may be missing.
    """
    plain = [_PREFIX.sub("", line, count=1) for line in lines]
    error = ""
    ignored = False
    number = 0
    while number < len(plain):
        line = plain[number]
        if _FATAL.match(line):
            error = line
        if line.startswith("Exception ignored in"):
            ignored = True
        if not _FRAME.match(line):
            number += 1
            continue
        while number < len(plain) and (not plain[number].strip() or plain[number][0].isspace()):
            number += 1
        if number < len(plain) and not ignored and not _is_stack(plain[number]):
            error = plain[number]
        ignored = False
    return CONTROL.sub(" ", error or _other_line(lines, plain)).strip()[:MAX_CHARACTERS]


def _other_line(lines: Sequence[str], plain: Sequence[str]) -> str:
    """Return the error line of a log that has no traceback, as ``error_line`` describes.

    ``plain`` are the ``lines`` without the prefixes that torchrun and exception groups add.
    """
    written = [(line, bare) for line, bare in zip(lines, plain) if line.strip()]  # noqa: B905
    useful = [entry for entry in written if not _is_stack(entry[1])]
    fatal = [entry for entry in useful if _NATIVE_FATAL.match(entry[1])]
    best = fatal or useful or written
    return best[-1][0] if best else ""


def _is_stack(line: str) -> bool:
    return any(pattern.match(line) for pattern in (_FRAME, _IGNORED, _NATIVE_STACK))


def last_attempt(lines: Sequence[str]) -> list[str]:
    """Return the lines that the last attempt wrote. ``lines`` are the last lines of a log."""
    starts = [index for index, line in enumerate(lines) if ATTEMPT_START.match(line)]
    return list(lines[starts[-1] + 1 if starts else 0 :])
