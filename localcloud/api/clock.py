"""The time as the API writes it, and reads it."""

import re
from datetime import UTC, datetime, timedelta

_DURATION = re.compile(r"(\d{1,12})(?:\.(\d{1,9}))?s")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")


def timestamp(seconds: float | None = None) -> str:
    """Give now, or ``seconds`` since 1970, as google.protobuf.Timestamp's JSON has it.

    That is UTC, RFC 3339, ending in Z.
    """
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds_of(text: str) -> float:
    """Read google.protobuf.Duration's JSON (``90s``, ``1.5s``); raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration, such as 3600s")
    return float(f"{found[1]}.{found[2] or 0}")


def moment_of(text: str) -> float:
    """Read google.protobuf.Timestamp's JSON as seconds since 1970; raises ValueError."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no time, such as 2026-12-31T18:00:00Z")
    whole = datetime.fromisoformat(f"{found[1]}{found[3].upper()}")
    return (whole + timedelta(seconds=float(found[2] or 0))).timestamp()
