"""What the watch remembers of a run between passes, and the limits of the watch.

The memory is stored in the run's record, so any controller may run the next pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ...module_utils.cloud.closest_names import closest_names


@dataclass(frozen=True)
class Limits:
    """How long the watch waits, in seconds, and how often it repeats an action.

    Args:
        heartbeat: the maximum age of a heartbeat.
        first_heartbeat: the maximum age of a heartbeat before the first step.
        output: the maximum age of the last log line of a trainer without heartbeat; 0: no limit.
        unreachable: how long workers may be unreachable before their TPU is replaced.
        settle: how long to wait before restarting a run that has ended on only some workers.
        crashes: the maximum number of crashes without a new step; 0: no limit. The watch gives up a
            run that exceeds ``crashes`` or ``preemptions``.
        preemptions: the maximum number of preemptions of the run; 0: no limit.
        nans: how often a run is relaunched after its loss was not a number.
        same_worker: how many times in a row one worker may be the first to fail before its TPU is
            replaced; 0: no limit.
        replacements: how often a TPU with an unreachable or bad worker is replaced.
        first_backoff: the first delay between tries.
        longest_backoff: the longest delay between tries.
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

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Limits:
        """Parse the variable ``watch_limits``. Raises ValueError."""
        known = [field.name for field in fields(cls)]
        numbers = {}
        for name, value in values.items():
            if name not in known:
                raise ValueError(
                    f"watch_limits: there is no limit {name!r:.60}. "
                    f"Limits: {closest_names(str(name), known)}"
                )
            try:
                numbers[name] = float(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"watch_limits: {name}: expected a number ({value!r:.60})"
                ) from None
        return cls(**numbers)

    def backoff(self, tries: int) -> float:
        """Return the delay in seconds after ``tries`` tries; the delay doubles up to a limit."""
        return min(self.longest_backoff, self.first_backoff * 2 ** min(tries, 20))


@dataclass(frozen=True)
class Memory:
    """What the watch remembers of a run between passes. Times are unix seconds; 0 means never.

    Args:
        state: the state of the run in the last pass.
        since: since when the run is in that state.
        best_step: the highest step that any attempt has finished.
        crashes: crashes since the last new step.
        preemptions: preemptions of the run's TPU.
        replacements: replacements of the TPU since the last new step.
        nans: crashes because the loss was not a number, since the last new step.
        tries: launches or creations of the TPU that were tried without success.
        not_before: the time before which the next action must not be tried.
        counted_attempt: the last attempt whose crash was counted.
        bad_worker: the worker that failed first in the last crash.
        bad_times: how many times in a row that worker was the first to fail.
    """

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
    def of(cls, stored: Mapping[str, Any]) -> Memory:
        """Parse the field ``watch`` of a run record; missing and invalid values get defaults."""
        values = {
            field.name: stored[field.name]
            for field in fields(cls)
            if _has_type_of(stored.get(field.name), field.default)
        }
        return cls(**values)

    def fields(self) -> dict[str, Any]:
        """Return the memory as a JSON object for the record."""
        return asdict(self)

    def at_time(self, now: float, limits: Limits) -> Memory:
        """Return the memory with its times limited to the latest that are possible at ``now``.

        A controller whose clock was ahead may have stored later times.
        """
        latest = now + limits.longest_backoff
        return replace(self, since=min(self.since, now), not_before=min(self.not_before, latest))

    def without_wait(self) -> Memory:
        """Return the memory with ``tries`` reset to 0, and no delay before the next action."""
        return replace(self, tries=0, not_before=0.0)

    def with_step(self, step: int, is_active: bool) -> Memory:
        """Return the memory after an attempt has finished ``step``.

        A step above ``best_step`` is progress: it sets all counts of failures except
        ``preemptions`` to 0. If the run is active, it also resets ``tries`` and ``not_before``.
        """
        if step <= self.best_step:
            return self
        cleared = {"crashes": 0, "nans": 0, "replacements": 0, "bad_worker": "", "bad_times": 0}
        memory = replace(self, best_step=step, **cleared)
        return memory.without_wait() if is_active else memory


def _has_type_of(value: object, default: object) -> bool:
    """Return whether a value has the type of its default; JSON may store a float as an int."""
    return type(value) is type(default) or (type(value) is int and type(default) is float)
