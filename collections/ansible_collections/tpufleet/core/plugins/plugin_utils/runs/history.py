"""The history of a run: typed events in its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...module_utils.worker.run_state import RunState
from .causes import Cause, one_line, parse_cause

MOST_CAUSES = 10


class EventKind(StrEnum):
    """What happened."""

    LAUNCHED = "launched"
    LAUNCH_FAILED = "launch_failed"
    FOUND_RUNNING = "found_running"
    STOPPED = "stopped"
    RESTARTED = "restarted"
    DONE = "done"
    WATCH = "watch"
    """A pass of the watch found something new, or acted."""
    NOTE = "note"
    """A text, such as older versions wrote."""


@dataclass(frozen=True)
class Event:
    """One event.

    Args:
        kind: what happened.
        time: unix seconds; 0 until it is stored.
        release: of a launch.
        text: an error message of a failed launch, or a note.
        state: what the watch judged.
        action: what the watch did.
        causes: why.
    """

    kind: EventKind
    time: float = 0.0
    release: str = ""
    text: str = ""
    state: RunState | None = None
    action: str = ""
    causes: tuple[Cause, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return the event as a record stores it, without its time."""
        found = {
            "kind": self.kind.value,
            "release": self.release,
            "text": self.text,
            "state": self.state.value if self.state else "",
            "action": self.action,
            "causes": [cause.fields() for cause in self.causes],
        }
        return {name: value for name, value in found.items() if value}


def parse_event(value: Mapping[str, Any], time: float) -> Event:
    """Read an event of a record. ``value`` may be of any version; texts are cut to one line.

    What this version does not know is read as a NOTE or left out. Raises ValueError for a value
    that no version writes.
    """
    if "kind" not in value:
        return Event(EventKind.NOTE, time, text=_line(value.get("what")))
    kind, state = _line(value["kind"]), _line(value.get("state", ""))
    found = value.get("causes", [])
    if not isinstance(found, list) or len(found) > MOST_CAUSES:
        raise ValueError("causes")
    causes = tuple(cause for each in found if (cause := parse_cause(each)))
    return Event(
        kind=EventKind(kind) if kind in list(EventKind) else EventKind.NOTE,
        time=time,
        release=_line(value.get("release", "")),
        text=_line(value.get("text", "")),
        state=RunState(state) if state in [each.value for each in RunState] else None,
        action=_line(value.get("action", "")),
        causes=causes,
    )


def _line(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return one_line(value)
