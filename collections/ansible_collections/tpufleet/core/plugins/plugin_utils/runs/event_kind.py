"""The kinds of events in the history of a run record."""

from __future__ import annotations

from enum import StrEnum


class EventKind(StrEnum):
    """Kind of an event in a run's history."""

    LAUNCHED = "launched"
    LAUNCH_FAILED = "launch_failed"
    FOUND_RUNNING = "found_running"
    STOPPED = "stopped"
    RESTARTED = "restarted"
    SETUP_STARTED = "setup_started"
    SETUP_DONE = "setup_done"
    DONE = "done"
    WATCH = "watch"
    """A pass of the watch observed something new, or acted."""
    NOTE = "note"
    """A text without a kind, as older versions wrote, or an event of an unknown kind."""
