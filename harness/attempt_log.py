"""The part of a run's log that belongs to its last attempt."""

import re

#: The line that roles/run/files/attempt writes before the output of an attempt.
_HEADER = re.compile(r"^--- \S+ attempt \d+$", re.MULTILINE)


def last_attempt(log: str) -> str:
    """Return the log from the header of the last attempt on; all of it if it has no header."""
    starts = [header.start() for header in _HEADER.finditer(log)]
    return log[starts[-1] if starts else 0 :]
