"""Data classes of the report: a run, its attempts and its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...module_utils.worker.run_state import RunState

if TYPE_CHECKING:
    from ..outputs.curves import Points
    from ..runs.observation import ProcessStatus

LAUNCH, PREEMPTED, CRASH, RESTART, KILL, DONE = (
    *("launch", "preempted", "crash", "restart", "kill", "done"),
)
OTHER = "other"
"""The kind of an event, or of the end of an attempt, that has none of the kinds above."""


@dataclass(frozen=True)
class Event:
    """An event of a run at ``time`` (unix seconds). ``text`` is what the report shows.

    ``kind`` is LAUNCH, PREEMPTED, CRASH, RESTART, KILL, DONE or OTHER.
    """

    time: float
    kind: str
    text: str


@dataclass(frozen=True)
class Attempt:
    """One attempt, from ``start`` to ``end`` in unix seconds.

    ``ended`` is the kind of its end (such as CRASH); empty if it is active or the end is unknown.
    ``ending`` says how it ended, such as ``crashed (exit 1)``. ``first_step`` is the first step in
    its metrics.
    """

    number: int
    start: float
    end: float
    ended: str = ""
    ending: str = ""
    first_step: int | None = None


@dataclass(frozen=True)
class RunView:
    """A run in the report. Its texts are not escaped for HTML; its numbers are finite.

    ``curves``, ``gaps``, ``last`` and ``log`` are those of RunOutput.

    Args:
        wanted: the desired state in the run's record, or ``no record``.
        state: the text for ``state_code``, such as ``crashed (exit 1)``.
        steps: the number of steps after which the run is done.
        goodput: between 0 and 1, None if unknown.
        goodput_by_cause: how the time in which the run was wanted was spent, in seconds per cause
            (TimeUse in runs/wanted_time.py).
        overrides: the settings key=value in the run's command.
        reason: the error message of the process that decides the state, if the run has failed; else
            empty.
        log_from: the process and the attempt that wrote the log, such as ``pod-w0, attempt 2``.
        changed: the time of the run's last event or output, in unix seconds; 0 if unknown.
    """

    name: str
    wanted: str
    tpu: str = ""
    release: str = ""
    curves: Mapping[str, Points] = field(default_factory=dict)
    last: Mapping[str, float | None] = field(default_factory=dict)
    steps: int | None = None
    events: Sequence[Event] = ()
    attempts: Sequence[Attempt] = ()
    workers: Sequence[ProcessStatus] = ()
    goodput: float | None = None
    state: str = ""
    state_code: RunState = RunState.UNKNOWN
    config: str = ""
    overrides: Mapping[str, str] = field(default_factory=dict)
    gaps: Sequence[float] = ()
    goodput_by_cause: Mapping[str, float] | None = None
    reason: str = ""
    log: Sequence[str] = ()
    log_from: str = ""
    changed: float = 0.0
