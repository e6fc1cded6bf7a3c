"""Goodput: the time that a run spent on useful steps, divided by the time it was wanted.

Steps that a later attempt repeated, and time in which training waited for a save, do not count as
useful.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...module_utils.worker.run_progress import STEP_LIMIT, TIME_LIMIT_S
from .event_kind import DesiredState, EventKind
from .wanted_time import TimeUse, phase_seconds, wanted_seconds

if TYPE_CHECKING:
    from ..outputs.summary import AttemptOutput


@dataclass(frozen=True)
class Goodput:
    """The seconds in which a run was wanted, and what they were spent on.

    ``seconds`` maps every value of TimeUse to its seconds; their sum is ``wanted``.
    """

    wanted: float
    seconds: Mapping[str, float]

    @property
    def share(self) -> float:
        """The goodput, between 0 and 1."""
        return min(1.0, self.seconds[TimeUse.TRAINING] / self.wanted)


def by_cause(
    record: Mapping[str, Any], attempts: Sequence[AttemptOutput], now: float
) -> Goodput | None:
    """Return how a run spent the time in which it was wanted.

    Returns None if the run was wanted for 0 s, or if it has attempts but no metrics yet. A run that
    is done was wanted until its last attempt ended.

    The clocks of cloud, controllers and workers may differ, so the seconds of all causes can exceed
    the wanted time. Then the seconds from ``attempts`` are scaled down.

    Args:
        record: the run record.
        attempts: the run's attempts, in order of their numbers.
        now: unix seconds.
    """
    is_wanted = record.get("wanted") == DesiredState.RUNNING
    if record.get("wanted") == DesiredState.DONE and attempts:
        now = attempts[-1].ended or attempts[-1].last or now
    wanted = wanted_seconds(record, now)
    if not wanted:
        return None
    if attempts and all(attempt.first is None for attempt in attempts):
        return None
    is_attempt = is_wanted and not record.get("phase")
    phases = _scaled_to_fit(phase_seconds(record, now), wanted)
    output = dict.fromkeys(TimeUse, 0.0)
    launched = launch_times(record)
    for index, attempt in enumerate(attempts):
        is_active = is_attempt and index == len(attempts) - 1 and attempt.ended is None
        until = now if is_active else attempt.ended
        for cause, seconds in _seconds_by_cause(
            attempt, launched.get(attempt.number), until
        ).items():
            output[cause] += max(0.0, seconds)
    fitted = _scaled_to_fit(output, max(0.0, wanted - sum(phases.values())))
    seconds = {cause.value: phases.get(cause, 0.0) + fitted[cause] for cause in TimeUse}
    seconds[TimeUse.OTHER] = max(0.0, wanted - sum(seconds.values()))
    return Goodput(wanted, seconds)


def _seconds_by_cause(
    attempt: AttemptOutput, launched_at: float | None, until: float | None
) -> dict[TimeUse, float]:
    """Return the seconds of an attempt, by cause.

    ``launched_at`` is when the launch was recorded, None if unknown. ``until`` is when the attempt
    ended, None if unknown; for an active attempt it is the current time. If the attempt has no
    ``start_seconds``, the start of the trainer is unknown, so the rendezvous before it counts as
    COMPILE instead of LAUNCH.
    """
    first_step = until if attempt.first is None else attempt.first
    launch_began = launched_at or attempt.began
    if launch_began is None or first_step is None:
        launch_seconds = start_seconds = 0.0
    else:
        process_began = attempt.began or launch_began
        if attempt.start_seconds is not None:
            process_began = first_step - attempt.start_seconds
        trainer_began = min(max(launch_began, process_began), first_step)
        launch_seconds, start_seconds = trainer_began - launch_began, first_step - trainer_began
    saves = min(attempt.saves, attempt.kept + attempt.redone)
    return {
        TimeUse.LAUNCH: launch_seconds,
        TimeUse.COMPILE: start_seconds,
        TimeUse.SAVES: saves,
        TimeUse.TRAINING: attempt.kept - saves,
        TimeUse.REDONE: attempt.redone - max(0.0, saves - attempt.kept),
    }


def launch_times(record: Mapping[str, Any]) -> dict[int, float]:
    """Return the launch times in the record's history, in unix seconds by attempt number.

    Events have no attempt number. The last launch in the history belongs to the newest attempt, the
    launch before it to the previous attempt, and so on.
    """
    times = [
        float(event.get("time") or 0.0)
        for event in record.get("history") or []
        if event.get("kind") == EventKind.LAUNCHED
    ]
    newest = int(record.get("attempt") or 0)
    return {newest - back: time for back, time in enumerate(reversed(times)) if time}


def _scaled_to_fit(durations: Mapping[Any, float], limit: float) -> dict[Any, float]:
    """Return the seconds in ``durations``, reduced in proportion if their sum exceeds ``limit``."""
    total = sum(durations.values())
    scale = limit / total if total > limit else 1.0
    return {name: seconds * scale for name, seconds in durations.items()}


def goodput(
    progress: Mapping[str, Any] | None, record: Mapping[str, Any], now: float
) -> float | None:
    """Return the goodput of a run, at most 1; None if it is unknown.

    Steps before the first step in ``progress`` ran on a lost TPU; they are assumed to have been as
    fast as the later ones. Impossible values count as unknown: workers' reports are not trusted.

    Args:
        progress: the result of module_utils/worker/run_progress.py on the worker that writes
            metrics; None if no worker returned one.
        record: the run record.
        now: unix seconds; for a run that is done, the time at which it ended.
    """
    wall = wanted_seconds(record, now)
    if not isinstance(progress, Mapping) or not wall:
        return None
    values = [progress.get(name) for name in ("first", "last", "counted")]
    if not all(isinstance(value, int | float) for value in values):
        return None
    first, last, counted = values
    if not (0 <= first < last < STEP_LIMIT and 0 <= counted < TIME_LIMIT_S):
        return None
    pace = counted / (last - first)
    return min(1.0, (counted + pace * max(0, first - 1)) / wall)
