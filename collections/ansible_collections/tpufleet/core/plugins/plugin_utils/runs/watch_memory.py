"""What the watch remembers of a run between passes, and the limits that it compares it with.

The memory is in the run's record, so any controller may run the next pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ...module_utils.worker.run_state import RunState


@dataclass(frozen=True)
class Limits:
    """How long the watch waits and how often it tries.

    Times are in seconds; 0 of a budget means no limit.

    ``output`` is how old the last line of a log may be where a trainer writes no heartbeat, 0 for
    any age.
    """

    heartbeat: float = 600
    first_heartbeat: float = 1800
    output: float = 0
    unreachable: float = 600
    settle: float = 45
    crashes: int = 5
    preemptions: int = 0
    nans: int = 1
    same_worker: int = 3
    replacements: int = 3
    first_backoff: float = 10
    longest_backoff: float = 600

    def backoff(self, tries: int) -> float:
        """Return the seconds to wait after a number of tries."""
        return min(self.longest_backoff, self.first_backoff * 2 ** min(tries, 20))


@dataclass(frozen=True)
class Memory:
    """What the watch knows of a run from the passes before. Times are unix seconds, 0 is never."""

    state: str = ""
    since: float = 0.0
    best_step: int = 0
    crashes: int = 0
    preemptions: int = 0
    replacements: int = 0
    nans: int = 0
    tries: int = 0
    not_before: float = 0.0
    counted_attempt: int = 0
    bad_worker: str = ""
    bad_times: int = 0

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Memory:
        """Read a record's ``watch``; what is missing or of another type has its default."""
        values = {
            field.name: kept[field.name]
            for field in fields(cls)
            if _has_type_of(kept.get(field.name), field.default)
        }
        return cls(**values)

    def fields(self) -> dict[str, Any]:
        """Return the memory as the record keeps it."""
        return asdict(self)

    def in_state(self, state: RunState, now: float) -> Memory:
        """Return the memory in a state, with the time of the change if it is one."""
        return self if self.state == state else replace(self, state=state.value, since=now)

    def seconds_in(self, state: RunState, now: float) -> float:
        """Return for how long the run has been in a state; 0 if it is in another one."""
        return max(0.0, now - self.since) if self.state == state else 0.0

    def without_wait(self) -> Memory:
        """Return the memory with no wait before the next try."""
        return replace(self, tries=0, not_before=0.0)

    def with_step(self, step: int, is_active: bool) -> Memory:
        """Return the memory after a step. A new best step clears all counts but preemptions."""
        if step <= self.best_step:
            return self
        cleared = {"crashes": 0, "nans": 0, "replacements": 0, "bad_worker": "", "bad_times": 0}
        memory = replace(self, best_step=step, **cleared)
        return memory.without_wait() if is_active else memory


def _has_type_of(value: object, default: object) -> bool:
    """Return whether a value has its default's type; JSON may hold a float as an int."""
    return type(value) is type(default) or (type(value) is int and type(default) is float)
