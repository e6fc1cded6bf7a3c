"""The actions of the watch."""

from __future__ import annotations

from enum import StrEnum


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
