"""A decision of the watch about one run, and the situation that it is based on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...module_utils.worker.run_state import RunState
from .causes import Cause, CauseCode
from .event_kind import RECREATIONS, Action

if TYPE_CHECKING:
    from .observation import Observation, ProcessStatus
    from .record import RunRecord
    from .watch_memory import Limits, Memory


DESTRUCTIVE = (Action.REPLACE, Action.RESTART, Action.STOP)
"""Actions that stop a run or delete a TPU, and therefore need a recent observation."""
LAUNCHES = (*RECREATIONS, Action.LAUNCH, Action.RESTART)
"""Actions that lead to a launch of the run, at once or in a later pass."""
QUIET_STATES = (RunState.STARTING, RunState.RUNNING, RunState.DONE, RunState.STOPPED)
"""States that the watch logs only if it acts, not when a run merely enters them."""


@dataclass(frozen=True)
class Decision:
    """What a pass decides about a run, and why.

    Args:
        action: what to do.
        state: the state of the run.
        causes: the reasons for the action and the state, and when a delayed action is tried again.
        memory: what the watch stores in the run record for later passes.
        is_new: whether to add the decision to the log and to the history in the run record.
    """

    action: Action
    state: RunState
    causes: tuple[Cause, ...]
    memory: Memory
    is_new: bool


@dataclass(frozen=True)
class Situation:
    """Everything that a decision about a run depends on.

    Args:
        record: the run's record.
        observed: the observed state of the run.
        memory: what earlier passes stored in the run record.
        now: unix seconds.
        limits: the limits and budgets of the watch.
    """

    record: RunRecord
    observed: Observation
    memory: Memory
    now: float
    limits: Limits

    def with_memory(self, memory: Memory) -> Situation:
        """Return a copy of the situation with another ``memory``."""
        return replace(self, memory=memory)

    def seconds_in(self, state: RunState) -> float:
        """Return how many seconds the run has been in ``state``; 0 if it is in another state."""
        return max(0.0, self.now - self.memory.since) if self.memory.state == state else 0.0

    def late_heartbeats(self, processes: Sequence[ProcessStatus]) -> list[ProcessStatus]:
        """Return the processes with a heartbeat if all heartbeats are too old, else no process."""
        limits = self.limits
        known = [process for process in processes if process.heartbeat_age is not None]
        late = [
            process
            for process in known
            if (process.heartbeat_age or 0)
            > (limits.heartbeat if process.step else limits.first_heartbeat)
        ]
        return late if len(late) == len(known) else []

    def stay(self, state: RunState, *causes: Cause) -> Decision:
        """Return the decision to do nothing; the run is in ``state``."""
        is_new = self.memory.state != state and state not in QUIET_STATES
        return self._decide(Action.NOTHING, state, causes, is_new)

    def act(self, action: Action, state: RunState, *causes: Cause) -> Decision:
        """Return the decision to take an action; the run is in ``state``."""
        return self._decide(action, state, causes, is_new=True)

    def act_with_delays(self, action: Action, state: RunState, cause: Cause) -> Decision:
        """Decide to take an action: at once the first time, then with growing delays."""
        if delay := self.delay(action):
            return self.stay(state, cause, delay)
        memory = self.memory
        next_try = self.now + self.limits.backoff(memory.tries)
        memory = replace(memory, tries=memory.tries + 1, not_before=next_try)
        return self.with_memory(memory).act(action, state, cause)

    def delay(self, action: Action) -> Cause | None:
        """Return the cause that states when the action is tried next; None if it is not delayed."""
        if self.now >= self.memory.not_before:
            return None
        code = CauseCode.RECREATE_IN if action in RECREATIONS else CauseCode.LAUNCH_IN
        return Cause.of(code, seconds=self.memory.not_before - self.now)

    def give_up(self, *causes: Cause) -> Decision:
        """Return the decision to give up the run."""
        given_up = replace(self.memory, state=RunState.GIVEN_UP.value, since=self.now)
        return Decision(Action.GIVE_UP, RunState.GIVEN_UP, causes, given_up, is_new=True)

    def _decide(
        self, action: Action, state: RunState, causes: tuple[Cause, ...], is_new: bool
    ) -> Decision:
        memory = self.memory
        if memory.state != state:
            memory = replace(memory, state=state.value, since=self.now)
        return Decision(action, state, causes, memory, is_new)
