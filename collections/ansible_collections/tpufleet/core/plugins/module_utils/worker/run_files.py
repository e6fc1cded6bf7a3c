"""Validation of the JSON files in a run's directory: heartbeat, exit status and rendezvous.

The trainer's user can write anything into these files. A value of the wrong type counts as missing.
Control characters are replaced by spaces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

MAX_TEXT = 1000
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
"""Control characters, which could manipulate a terminal; also tabs and newlines."""
_WORD = re.compile(r"[A-Za-z0-9 _.,-]{1,64}")


class Heartbeat(NamedTuple):
    """The trainer's reported progress. ``time`` is in unix seconds; None means unknown.

    ``step`` is the last finished step, ``steps`` is the number of steps of the run, and
    ``start_step`` is the step at which the attempt started. ``mfu`` is between 0 and 1.
    ``device_bytes`` is the memory in use on the device that uses the most memory, and
    ``device_limit_bytes`` is the size of that device's memory.
    """

    step: int | None
    steps: int | None
    time: float | None
    loss: float | None
    tokens_per_second: float | None
    state: str | None
    mfu: float | None
    device_bytes: int | None
    device_limit_bytes: int | None
    start_step: int | None


class Exit(NamedTuple):
    """How an attempt ended, with systemd's SERVICE_RESULT, EXIT_CODE and EXIT_STATUS.

    systemd.exec(5) describes these values. ``time`` is in unix seconds.
    """

    attempt: int | None
    result: str
    code: str
    status: str
    time: float | None


class Rendezvous(NamedTuple):
    """The progress of a rendezvous and, later, which other worker made this trainer stop.

    ``waiting_for`` are the names of the workers that have not arrived; empty while unknown, None
    after the rendezvous. ``error`` says why the rendezvous failed. ``peer`` is the other worker
    that made this trainer stop: its process ended with ``peer_exit_code``, or the worker was lost
    and the code is None.
    """

    attempt: int | None
    waiting_for: tuple[str, ...] | None
    error: str
    peer: str
    peer_exit_code: int | None


def read_heartbeat(content: Mapping | None) -> Heartbeat | None:
    """Validate the content of heartbeat.json; None if there is no such file."""
    if content is None:
        return None
    return Heartbeat(
        step=as_count(content.get("step")),
        steps=as_count(content.get("steps")),
        time=as_number(content.get("time")),
        loss=as_number(content.get("loss")),
        tokens_per_second=as_number(content.get("tokens_per_second")),
        state=_word(content.get("state")) or None,
        mfu=_share(content.get("mfu")),
        device_bytes=as_count(content.get("device_bytes")),
        device_limit_bytes=as_count(content.get("device_limit_bytes")),
        start_step=as_count(content.get("start_step")),
    )


def read_exit(content: Mapping | None) -> Exit | None:
    """Validate the content of exit.json; None if there is no such file."""
    if content is None:
        return None
    return Exit(
        attempt=as_count(content.get("attempt")),
        result=_word(content.get("result")),
        code=_word(content.get("code")),
        status=_word(content.get("status")),
        time=as_number(content.get("time")),
    )


def read_rendezvous(content: Mapping | None) -> Rendezvous | None:
    """Validate the content of rendezvous.json; None if there is no such file."""
    if content is None:
        return None
    names = content.get("waiting_for")
    return Rendezvous(
        attempt=as_count(content.get("attempt")),
        waiting_for=tuple(map(as_text, names[:1000])) if isinstance(names, list) else None,
        error=as_text(content.get("error")),
        peer=as_text(content.get("peer")),
        peer_exit_code=as_count(content.get("peer_exit_code")),
    )


def as_count(value: object) -> int | None:
    """Return a value from JSON if it is a whole number from 0 to 2**63 - 1, else None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return value if is_count else None


def as_number(value: object) -> float | None:
    """Return a value from JSON if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer in JSON may be too large for a float
        return None


def _share(value: object) -> float | None:
    number = as_number(value)
    return number if number is not None and 0 <= number <= 1 else None


def _word(value: object) -> str:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""


def as_text(value: object) -> str:
    """Return a text from JSON on one line of at most MAX_TEXT characters; "" for other values."""
    return CONTROL.sub(" ", value)[:MAX_TEXT] if isinstance(value, str) else ""
