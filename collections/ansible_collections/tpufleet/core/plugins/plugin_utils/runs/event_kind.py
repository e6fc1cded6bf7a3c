"""Enums of run records: desired states, kinds of events, and actions of the watch."""

from __future__ import annotations

from enum import StrEnum

MAX_HISTORY = 50
"""Maximum number of events in a record's history; the oldest are dropped."""


class DesiredState(StrEnum):
    """The state that a run should have: running until done, stopped by a user, or done."""

    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"


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


class Action(StrEnum):
    """An action of a pass of the watch on one run."""

    NOTHING = "nothing"
    RECREATE = "recreate"
    REPLACE = "replace"
    """Delete a TPU that the API reports as READY, and recreate it."""
    LAUNCH = "launch"
    RESTART = "restart"
    STOP = "stop"
    RECORD_DONE = "record done"
    GIVE_UP = "give up"


RECREATIONS = (Action.RECREATE, Action.REPLACE)
"""Actions that recreate the TPU of a run."""
