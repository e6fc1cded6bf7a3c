"""Summary of a run's stored output: its attempts, curves over all attempts, and last log lines."""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING

from ...module_utils.worker.end_state import KILLED_REASONS, ProcessState, end_state
from ...module_utils.worker.error_line import error_line, last_attempt
from ...module_utils.worker.run_files import Exit
from ...module_utils.worker.run_state import RunState
from ..runs.observation import ProcessStatus, deciding_process
from .curves import Points, Rows, curve, gaps
from .reader import (
    AT_ONCE,
    MOST_SECONDS,
    StoredProcess,
    log_tail,
    metrics_records,
    read_end,
    read_start,
)

if TYPE_CHECKING:
    from .objects import OutputStore

CURVES = {
    "loss": "loss",
    "heldout": "heldout_loss",
    "rate": "tokens_per_second",
    "mfu": "mfu",
    "memory": "device_bytes",
    "times": "time",
}
"""The column of the metrics for each curve, by the curve's name."""
MEMORY = {"device_memory_gib": "device_bytes", "device_limit_gib": "device_limit_bytes"}
"""The column of the metrics, in bytes, for each value in GiB."""
NOW_AND_THEN = ("heldout_loss", "mfu")
"""Columns of the metrics that trainers write only at some steps."""
GIB = 1 << 30
LOG_LINES = 50
ERROR_LINES = 200
"""Number of log lines that are searched for the error message of a failed attempt."""
MOST_LINES = 1_000_000
"""Maximum number of lines of metrics that are read for a run."""


@dataclass(frozen=True)
class ProcessOutput:
    """One process of an attempt, which began at ``began`` (unix seconds) on ``worker``.

    ``end`` is None if the process has not ended, or if its worker was lost. ``worker`` is empty and
    ``began`` None if no start is stored.
    """

    process_id: int
    worker: str
    began: float | None
    end: Exit | None = None

    @property
    def state(self) -> ProcessState:
        """How the process ended; LOST if no end is stored."""
        return end_state(self.end) if self.end else ProcessState(RunState.LOST)

    @property
    def name(self) -> str:
        """The inventory name of its worker, or ``process N`` if the worker is unknown."""
        return self.worker or f"process {self.process_id}"

    def status(self, run: str, attempt: int) -> ProcessStatus:
        """Return the status of this process, as parse_process() returns it for a live worker.

        ``run`` and ``attempt`` are the run and the attempt of the process.
        """
        state, reason, exit_code, signal = self.state
        ended_at = (self.end.time if self.end else None) or 0.0
        return ProcessStatus(
            self.name, state, reason, run, attempt, exit_code, signal, ended_at=ended_at
        )


@dataclass(frozen=True)
class AttemptOutput:
    """One attempt of a run. Times are in unix seconds, durations in seconds.

    Args:
        number: the number of the attempt.
        began: when its first process began; None if unknown.
        ended: when its last process ended; None if a process has not ended or was lost.
        first_step: the first step that the attempt did.
        first: when the first step ended.
        last: when the last step ended.
        kept: the time of the steps that no later attempt repeated.
        redone: the time of the steps that a later attempt repeated.
        saves: how long training waited for checkpoints to be saved.
        start_seconds: the time from the start of the trainer to the end of its first step.
        processes: its processes.
    """

    number: int
    began: float | None = None
    ended: float | None = None
    first_step: int | None = None
    first: float | None = None
    last: float | None = None
    kept: float = 0.0
    redone: float = 0.0
    saves: float = 0.0
    start_seconds: float | None = None
    processes: tuple[ProcessOutput, ...] = ()


@dataclass(frozen=True)
class RunOutput:
    """What a run wrote in all its attempts.

    Args:
        attempts: its attempts, in order.
        curves: points (step, value) sorted by step, at most 1,000 each, by name (CURVES): rate in
            tokens per second, mfu from 0 to 1, memory in GiB of the fullest device, times in unix
            seconds. Curves without points are left out.
        gaps: the steps at which the loss becomes NaN.
        last: the values of the last step, by column. For values that trainers write only at some
            steps, it has the last known value: held-out loss, mfu, ``device_memory_gib`` (memory in
            use) and ``device_limit_gib`` (total memory).
        is_cut: whether there are more than MOST_LINES lines of metrics; later lines are not read.
        log: the last lines of the log of the process that decides how the last attempt ended.
        log_from: the worker and the attempt of this log, such as ``pod-w0, attempt 2``.
        error: the error message in this log, if that process has failed.
    """

    attempts: tuple[AttemptOutput, ...] = ()
    curves: Mapping[str, Points] = field(default_factory=dict)
    gaps: Sequence[float] = ()
    last: Mapping[str, float | None] = field(default_factory=dict)
    is_cut: bool = False
    log: tuple[str, ...] = ()
    log_from: str = ""
    error: str = ""

    def warnings(self, run: str) -> list[str]:
        """Return a list with a warning if not all lines of metrics were read, else an empty one."""
        text = f"{run}: has over {MOST_LINES:,} lines of metrics; only the first ones are read"
        return [text] if self.is_cut else []

    def to_json(self) -> str:
        """Return the summary as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> RunOutput:
        """Parse a summary that ``to_json`` wrote. Raises ValueError, TypeError or KeyError."""
        found = json.loads(text)
        attempts = tuple(
            AttemptOutput(**{**each, "processes": tuple(map(_process_of, each["processes"]))})
            for each in found["attempts"]
        )
        return cls(**{**found, "attempts": attempts, "log": tuple(found["log"])})


def _process_of(found: Mapping) -> ProcessOutput:
    return ProcessOutput(**{**found, "end": Exit(*found["end"]) if found["end"] else None})


class OwnSteps:
    """The steps that one attempt did, with their times in unix seconds.

    A trainer may rewrite metrics.jsonl, so an attempt's metrics can begin with lines of earlier
    attempts. Lines with a time before ``began``, the attempt's start, are ignored.
    """

    def __init__(self, began: float | None) -> None:
        self._began = began or 0.0
        self.steps, self.times = array("d"), array("d")
        self.saves = 0.0
        self.start_seconds: float | None = None

    def add(self, step: float, time: float, save: float, start: float) -> None:
        """Add a step, unless its time is invalid or earlier than the time of the previous step.

        Args:
            step: the number of the step.
            time: when it ended, in unix seconds.
            save: the seconds that training waited for a checkpoint to be saved; may be NaN.
            start: for the first step, the seconds from the start of the trainer to the step's end;
                NaN for other steps.
        """
        if max(self._began, self.times[-1] if self.times else 0.0) <= time <= MOST_SECONDS:
            if not self.steps:
                self.start_seconds = _duration(start)
            self.steps.append(step)
            self.times.append(time)
            self.saves += _duration(save) or 0.0

    def measured(self, attempt: AttemptOutput, resumed_at: float) -> AttemptOutput:
        """Return ``attempt`` with the fields about steps set.

        ``resumed_at`` is the lowest step that a later attempt did again; infinity if none did.
        """
        if not self.steps:
            return attempt
        place = bisect_left(self.steps, resumed_at)
        kept = self.times[place - 1] - self.times[0] if place else 0.0
        return replace(
            attempt,
            first_step=int(self.steps[0]),
            first=self.times[0],
            last=self.times[-1],
            kept=kept,
            redone=self.times[-1] - self.times[0] - kept,
            saves=self.saves,
            start_seconds=self.start_seconds,
        )


def summary_of(store: OutputStore, run: str, processes: Sequence[StoredProcess]) -> RunOutput:
    """Read and summarize the stored output of a run's processes. Raises OutputError."""
    rows = Rows()
    attempts: list[AttemptOutput] = []
    done: list[OwnSteps] = []
    left, is_cut = MOST_LINES, False
    with ThreadPoolExecutor(AT_ONCE) as pool:
        read = list(pool.map(lambda each: process_output(store, each), processes))
    by_attempt = groupby(zip(processes, read, strict=True), lambda each: each[0].attempt)
    for number, group in by_attempt:
        mine = list(group)
        attempt = _attempt(number, tuple(process for _, process in mine))
        earlier = max((each.began or 0.0 for each in attempts), default=0.0)
        if attempt.began is not None and attempt.began < earlier:
            continue  # this attempt is of an older run with the same name
        attempts.append(attempt)
        # tpufleet's trainer writes metrics in process 0; other trainers may use another process.
        writer, process = next((each for each in mine if each[0].metrics), mine[0])
        done.append(OwnSteps(process.began))
        records = metrics_records(store, writer)
        left -= add_records(rows, done[-1], islice(records, left))
        is_cut = is_cut or (not left and next(records, None) is not None)
    resumed_at = float("inf")
    for place in reversed(range(len(attempts))):
        attempts[place] = done[place].measured(attempts[place], resumed_at)
        resumed_at = min(resumed_at, done[place].steps[0] if done[place].steps else resumed_at)
    found = RunOutput(attempts=tuple(attempts), is_cut=is_cut)
    found = _with_log(store, run, processes, found)
    if not len(rows):
        return found
    curves = {name: curve(rows, column) for name, column in CURVES.items()}
    curves["memory"] = [(step, used / GIB) for step, used in curves["memory"]]
    last = {name: _plain(column[-1]) for name, column in rows.columns.items()}
    last |= {name: _latest(rows.columns[name]) for name in NOW_AND_THEN}
    for name, column in MEMORY.items():
        size = _latest(rows.columns[column])
        last[name] = None if size is None else size / GIB
    return replace(
        found,
        curves={name: points for name, points in curves.items() if points},
        gaps=gaps(rows, "loss"),
        last=last,
    )


def _with_log(
    store: OutputStore, run: str, processes: Sequence[StoredProcess], found: RunOutput
) -> RunOutput:
    """Return ``found`` with the end of the log of the process that decides how the run ended."""
    logs = {(each.attempt, each.process_id): each for each in processes if each.log}
    written = {number for number, _ in logs}
    attempt = next((each for each in reversed(found.attempts) if each.number in written), None)
    if attempt is None:
        return found
    newest = attempt.number
    mine = [each for each in attempt.processes if (newest, each.process_id) in logs]
    statuses = [each.status(run, newest) for each in mine]
    decisive = mine[statuses.index(deciding_process(statuses))]
    lines = log_tail(store, logs[newest, decisive.process_id], ERROR_LINES)
    state = decisive.state
    has_error = state.state is RunState.FAILED and state.reason_code not in KILLED_REASONS
    return replace(
        found,
        log=tuple(lines[-LOG_LINES:]),
        log_from=f"{decisive.name}, attempt {newest}",
        error=error_line(last_attempt(lines)) if has_error else "",
    )


def add_records(rows: Rows, own: OwnSteps, records: Iterable[object]) -> int:
    """Add lines of metrics to ``rows`` and ``own``; return the number of lines.

    ``rows`` has the steps of all attempts, ``own`` the steps of the attempt that wrote the lines.
    ``records`` are the lines, parsed from JSON; invalid ones are counted but not added.
    """
    count = 0
    names = ("step", "time", "save_seconds", "start_seconds")
    columns = [rows.columns[name] for name in names]
    for record in records:
        count += 1
        if rows.add(record):
            own.add(*(column[-1] for column in columns))
    return count


def process_output(store: OutputStore, process: StoredProcess) -> ProcessOutput:
    """Read when and where a process began, and how it ended. Raises OutputError."""
    start = read_start(store, process)
    worker, began = (start.worker, start.began) if start else ("", None)
    return ProcessOutput(process.process_id, worker, began, read_end(store, process))


def _attempt(number: int, processes: tuple[ProcessOutput, ...]) -> AttemptOutput:
    began = [each.began for each in processes if each.began is not None]
    ends = [each.end.time for each in processes if each.end and each.end.time is not None]
    is_over = all(each.end for each in processes)
    return AttemptOutput(
        number,
        min(began, default=None),
        max(ends, default=None) if is_over else None,
        processes=processes,
    )


def _duration(seconds: float) -> float | None:
    return seconds if 0 <= seconds <= MOST_SECONDS else None


def _latest(column: Sequence[float]) -> float | None:
    """Return the last value of a column that is not NaN."""
    return next((value for value in reversed(column) if math.isfinite(value)), None)


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
