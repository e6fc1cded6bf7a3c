"""A decision of the watch about one run, and the situation in which it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ...module_utils.worker.run_state import RunState
from .causes import Cause
from .observation import Observation, ProcessStatus
from .watch_memory import Limits, Memory

if TYPE_CHECKING:
    from .record import RunRecord


class Action(StrEnum):
    """What a pass does."""

    NOTHING = "nothing"
    RECREATE = "recreate"
    REPLACE = "replace"
    """Delete a TPU that the API reports as READY, and create it again."""
    LAUNCH = "launch"
    RESTART = "restart"
    STOP = "stop"
    RECORD_DONE = "record done"
    GIVE_UP = "give up"


DESTRUCTIVE = (Action.REPLACE, Action.RESTART, Action.STOP)
"""Actions that end or delete something that may have recovered since it was observed."""
LAUNCHES = (Action.RECREATE, Action.REPLACE, Action.LAUNCH, Action.RESTART)
"""Actions at whose end the run is launched."""
QUIET_STATES = (RunState.RUNNING, RunState.DONE, RunState.STOPPED)
"""States that need no line in the log when a run gets into them by itself."""


@dataclass(frozen=True)
class Decision:
    """What a pass does about a run, and why.

    Args:
        action: what to do.
        state: what the run is doing.
        causes: why, and what follows.
        memory: what the next pass is to know.
        is_new: whether it is worth a line in the log and the record's history.
    """

    action: Action
    state: RunState
    causes: tuple[Cause, ...]
    memory: Memory
    is_new: bool

    def remembered(self) -> dict[str, Any]:
        """Return the memory as the record keeps it."""
        return self.memory.fields()


@dataclass(frozen=True)
class Situation:
    """Everything that a decision is made of. ``now`` is in unix seconds."""

    record: RunRecord
    observed: Observation
    memory: Memory
    now: float
    limits: Limits

    def remembering(self, memory: Memory) -> Situation:
        """Return the situation with another memory."""
        return replace(self, memory=memory)

    def seconds_in(self, state: RunState) -> float:
        """Return for how long the run has been in a state; 0 if it is in another one."""
        return self.memory.seconds_in(state, self.now)

    def late_heartbeats(self, processes: Sequence[ProcessStatus]) -> list[ProcessStatus]:
        """Return the processes whose heartbeat is too old; none if one of them is in time."""
        limits = self.limits
        known = [each for each in processes if each.heartbeat_age is not None]
        late = [
            each
            for each in known
            if (each.heartbeat_age or 0)
            > (limits.heartbeat if each.step else limits.first_heartbeat)
        ]
        return late if len(late) == len(known) else []

    def stay(self, state: RunState, *causes: Cause) -> Decision:
        """Do nothing."""
        is_new = self.memory.state != state and state not in QUIET_STATES
        return self._decide(Action.NOTHING, state, causes, is_new)

    def act(self, action: Action, state: RunState, *causes: Cause) -> Decision:
        """Take an action."""
        return self._decide(action, state, causes, is_new=True)

    def give_up(self, *causes: Cause) -> Decision:
        """Stop trying to run it."""
        given_up = replace(self.memory, state=RunState.GIVEN_UP.value, since=self.now)
        return Decision(Action.GIVE_UP, RunState.GIVEN_UP, causes, given_up, is_new=True)

    def _decide(
        self, action: Action, state: RunState, causes: tuple[Cause, ...], is_new: bool
    ) -> Decision:
        memory = self.memory.in_state(state, self.now)
        return Decision(action, state, causes, memory, is_new)
