"""Formatting and parsing of timestamps and durations in the API's JSON."""

import re
from datetime import UTC, datetime, timedelta

_DURATION = re.compile(r"(\d{1,12})(?:\.(\d{1,9}))?s")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")


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
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration such as 3600s")
    return float(f"{found[1]}.{found[2] or 0}")


def moment_of(text: str) -> float:
    """Parse JSON of google.protobuf.Timestamp into seconds since 1970.

    Raises ValueError if ``text`` is not a timestamp.
    """
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time such as 2026-12-31T18:00:00Z")
    whole = datetime.fromisoformat(f"{found[1]}{found[3].upper()}")
    return (whole + timedelta(seconds=float(found[2] or 0))).timestamp()
