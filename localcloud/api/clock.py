"""Formatting and parsing of timestamps and durations in the API's JSON."""

import re
from datetime import UTC, datetime

_DURATION = re.compile(r"\d{1,12}(\.\d{1,9})?s")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")


def timestamp(seconds: float | None = None) -> str:
    """Format a time as JSON of google.protobuf.Timestamp (RFC 3339, in UTC).

    ``seconds`` is the time since 1970; default: now.
    """
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds_of(text: str) -> float:
    """Parse JSON of google.protobuf.Duration, such as ``1.5s``, into seconds.

    Raises ValueError if ``text`` is not a duration.
    """
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 3600s")
    return float(text.removesuffix("s"))


def parse_timestamp(text: str) -> float:
    """Parse JSON of google.protobuf.Timestamp into seconds since 1970.

    Raises ValueError if ``text`` is not a timestamp.
    """
    if not _TIMESTAMP.fullmatch(text):
        raise ValueError(f"{text!r} is not a time such as 2026-12-31T18:00:00Z")
    return datetime.fromisoformat(text.upper()).timestamp()
