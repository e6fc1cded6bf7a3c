"""The history of a run: typed events in its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...module_utils.worker.run_state import RunState
from .causes import Cause, one_line, parse_cause
from .event_kind import EventKind

MAX_CAUSES = 10
MAX_TIME = 1e12


@dataclass(frozen=True)
class Event:
    """One event in a run's history.

    Args:
        kind: what happened.
        time: unix seconds; 0 until the event is stored.
        release: the release, if the event is a launch.
        text: the error message of a failed launch.
        state: the state in which the watch found the run.
        action: what the watch did.
        causes: why the watch did it.
        created: when the cloud began to create the TPU that is being set up, in unix seconds; 0 if
            unknown.
    """

    kind: EventKind
    time: float = 0.0
    release: str = ""
    text: str = ""
    state: RunState | None = None
    action: str = ""
    causes: tuple[Cause, ...] = ()
    created: float = 0.0

    def fields(self) -> dict[str, Any]:
        """Return the event as a run record stores it, without its time."""
        fields = {
            "kind": self.kind.value,
            "release": self.release,
            "text": self.text,
            "state": self.state.value if self.state else "",
            "action": self.action,
            "causes": [cause.fields() for cause in self.causes],
            "created": self.created,
        }
        return {name: value for name, value in fields.items() if value}


def parse_event(value: Mapping[str, Any], time: float) -> Event:
    """Parse a stored event; each text becomes one line. Raises ValueError if it is invalid.

    ``time`` is the event's time in unix seconds.
    """
    state, items = value.get("state"), value.get("causes", [])
    if not isinstance(items, list) or len(items) > MAX_CAUSES:
        raise ValueError("causes")
    return Event(
        kind=EventKind(value.get("kind")),
        time=time,
        release=_line(value.get("release", "")),
        text=_line(value.get("text", "")),
        state=None if state is None else RunState(state),
        action=_line(value.get("action", "")),
        causes=tuple(map(parse_cause, items)),
        created=parse_time(value.get("created", 0.0)),
    )


def parse_time(value: Any) -> float:
    """Return a time or duration of a run record in seconds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TIME:
        raise ValueError(f"is not a number of seconds from 0 to {MAX_TIME:g}")
    return float(value)


def _line(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return one_line(value)
