"""Search for the log line that says why a trainer crashed.

Python prints an exception after its stack, whose frames are indented. Of chained exceptions, the
last one ended the program. Notes (PEP 678), such as JAX's "For simplicity, JAX has removed its
internal frames", follow the exception, so the last line of a log may be a note. Python 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_CHARACTERS = 300
_FRAME = re.compile(r'\s+File ".*", line \d+')
_PREFIX = re.compile(r"(\[[\w-]+\]:\s?)?(\s*\|\s?)?")
"""What torchrun ("[rank0]: ") and exception groups ("  | ") print before lines of a traceback."""
_IGNORED = re.compile(r"Exception ignored in|Traceback \(most recent call last\)|Stack \(most")
_FATAL = re.compile(r"Fatal Python error: ")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def error_line(lines: Sequence[str]) -> str:
    """Return the line of the last traceback's exception, else the last line that is not empty.

    ``lines`` are the last lines of the last attempt's log. Tracebacks are recognized by their
    frames, because the first line of a traceback may be missing.
    """
    plain = [_PREFIX.sub("", line, count=1) for line in lines]
    found = ""
    ignored = False
    number = 0
    while number < len(plain):
        line = plain[number]
        if _FATAL.match(line):
            found = line
        if line.startswith("Exception ignored in"):
            ignored = True
        if not _FRAME.match(line):
            number += 1
            continue
        while number < len(plain) and (not plain[number].strip() or plain[number][0].isspace()):
            number += 1
        if number < len(plain) and not ignored and not _IGNORED.match(plain[number]):
            found = plain[number]
        ignored = False
    told = found or next((line for line in reversed(lines) if line.strip()), "")
    return _CONTROL.sub(" ", told).strip()[:MAX_CHARACTERS]


def last_attempt(lines: Sequence[str]) -> list[str]:
    """Return the lines that the last attempt wrote, from a log's last lines."""
    starts = [
        index for index, line in enumerate(lines) if line.startswith("--- ") and " attempt " in line
    ]
    return list(lines[starts[-1] + 1 if starts else 0 :])
