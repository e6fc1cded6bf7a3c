"""Heartbeat of the watch: when each controller's last pass ended, its duration and outcome.

Each controller has one JSON document below ``<fleet_state>/watch/passes``. The watch writes it at
the end of each pass; status.yml and doctor.yml read it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from .causes import one_line
from .history import parse_time
from .record_error import RecordError
from .record_store import RecordStore, record_store
from .status import age_text

_CONTROLLER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_MAX_TEXT = 500


class HeartbeatError(Exception):
    """A heartbeat is invalid, or cannot be read or written; the message is one line."""


class PassOutcome(StrEnum):
    """Whether a pass succeeded."""

    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True)
class Heartbeat:
    """The last pass of one controller.

    ``ended_at`` is in unix seconds, ``duration_s`` in seconds; ``error`` is why a pass failed, on
    one line.
    """

    controller: str
    ended_at: float
    duration_s: float
    outcome: PassOutcome
    error: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the controller's last pass of the watch failed."""
        return self.outcome is PassOutcome.FAILED


def controller_name(hostname: str) -> str:
    """Return a host name as a valid controller name: invalid characters become ``-``."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", hostname).lstrip("_.-")[:100] or "controller"


def parse_heartbeat(value: object) -> Heartbeat:
    """Validate the JSON value of a heartbeat. Raises HeartbeatError, which names the field."""
    if not isinstance(value, Mapping):
        raise HeartbeatError("heartbeat of the watch: not a JSON object")
    controller, error = value.get("controller"), value.get("error", "")
    if not isinstance(controller, str) or not _CONTROLLER.fullmatch(controller):
        raise HeartbeatError("heartbeat of the watch: invalid controller")
    if not isinstance(error, str):
        raise HeartbeatError("heartbeat of the watch: the value of error is not a string")
    return Heartbeat(
        controller,
        _parsed(value, "ended_at", parse_time),
        _parsed(value, "duration_s", parse_time),
        _parsed(value, "outcome", PassOutcome),
        one_line(error)[:_MAX_TEXT],
    )


def _parsed[Parsed](value: Mapping[str, Any], name: str, parse: Callable[[Any], Parsed]) -> Parsed:
    try:
        return parse(value.get(name))
    except ValueError:
        raise HeartbeatError(f"heartbeat of the watch: invalid {name}") from None


def write_heartbeat(fleet_state: str, heartbeat: Heartbeat, api: Mapping[str, Any]) -> None:
    """Replace a controller's stored heartbeat.

    ``api`` is the inventory's variable ``tpu_api``, for a bucket. Raises HeartbeatError.
    """
    checked = parse_heartbeat(asdict(heartbeat))
    try:
        # put() replaces a document only if its field ``generation`` has the given value; a missing
        # field counts as 0. Heartbeats do not have this field, so the value 0 always replaces them.
        _documents(fleet_state, api).put(checked.controller, 0, asdict(checked))
    except RecordError as error:
        raise HeartbeatError(
            f"{fleet_state}: can't write the watch's heartbeat ({error})"
        ) from None


def read_heartbeats(fleet_state: str, api: Mapping[str, Any]) -> tuple[Heartbeat, ...]:
    """Return every controller's last heartbeat, newest first; skip invalid documents.

    Raises HeartbeatError if the documents can't be listed, or if one can't be read and no other is
    valid.
    """
    heartbeats: list[Heartbeat] = []
    read_error: RecordError | None = None
    try:
        documents = _documents(fleet_state, api)
        for name in filter(_CONTROLLER.fullmatch, documents.runs()):
            try:
                heartbeats.append(parse_heartbeat(documents.read(name)))
            except RecordError as error:
                read_error = error
            except HeartbeatError:
                continue
        if read_error and not heartbeats:
            raise read_error
    except RecordError as error:
        raise HeartbeatError(f"{fleet_state}: can't read the watch's heartbeat ({error})") from None
    return tuple(sorted(heartbeats, key=lambda heartbeat: -heartbeat.ended_at))


def heartbeat_line(heartbeats: Sequence[Heartbeat], now: float) -> str:
    """Format the newest heartbeat: ``watch: last pass 40 s ago on laptop``.

    The line is empty if no pass has ended yet. ``now`` is in unix seconds.
    """
    if not heartbeats:
        return ""
    last = heartbeats[0]
    line = f"watch: last pass {age_text(now - last.ended_at)} ago on {last.controller}"
    if last.has_failed:
        line += f", failed: {last.error}" if last.error else ", failed"
    return line


def _documents(fleet_state: str, api: Mapping[str, Any]) -> RecordStore:
    return record_store(f"{fleet_state.rstrip('/')}/watch/passes", api)
