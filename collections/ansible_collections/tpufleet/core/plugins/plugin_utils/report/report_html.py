"""Formats of the report: escaped text, times, durations and numbers."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime

#: Control characters, characters that change the direction of text, and unpaired surrogates.
_UNSHOWABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: The end of the year 9999 in unix seconds; later times from workers are shown as this one.
_LAST_TIME = 253402300799.0


def escaped(text: str) -> str:
    """Return text for HTML, also within an attribute; characters that can't be shown become �."""
    return html.escape(_UNSHOWABLE.sub("�", text))


def moment(time_s: float) -> str:
    """Format a time in unix seconds as UTC, to the second; a time before 1970 becomes 1970."""
    return f"{datetime.fromtimestamp(min(max(time_s, 0), _LAST_TIME), UTC):%Y-%m-%d %H:%M:%S}"


def duration(seconds: float) -> str:
    """Format a duration in seconds: ``42 s``, ``7 min 5 s``, ``3 h 20 min``, ``2 d 4 h``."""
    rounded = int(min(max(seconds, 0), _LAST_TIME) + 0.5)
    for size, name, smaller_size, smaller_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if rounded >= size:
            rest = rounded % size // smaller_size
            return f"{rounded // size} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{rounded} s"


def number(value: float | None, form: str) -> str:
    """Format a number with a format such as ``{:.4f}``; empty for None."""
    return "" if value is None else form.format(value)
