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
    MAX_PARALLEL,
    MAX_SECONDS,
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
"""The names of the values in GiB in RunOutput.last; for each, the metrics column in bytes."""
OCCASIONAL_COLUMNS = ("heldout_loss", "mfu")
"""Columns of the metrics that trainers write only at some steps."""
GIB = 1 << 30
LOG_LINES = 50
ERROR_LINES = 200
"""Number of log lines that are searched for the error message of a failed attempt."""
MAX_LINES = 1_000_000
"""Maximum number of lines of metrics that are read for a run."""


@dataclass(frozen=True)
class ProcessOutput:
    """One process of an attempt. It began at ``began`` (unix seconds) on ``worker``.

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
        """The inventory name of the process's worker; ``process N`` if the worker is unknown."""
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
        first_step: the first step that the attempt executed.
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
        is_cut: whether there are more than MAX_LINES lines of metrics; later lines are not read.
        log: the last lines of one process's log. The attempt is the last one with a stored log, and
            the process is the one that decides how this attempt ended.
        log_worker: the name of the process that wrote this log (ProcessOutput.name).
        log_attempt: the attempt in which it wrote this log.
        error: the error message in this log, if that process has failed.
    """

    attempts: tuple[AttemptOutput, ...] = ()
    curves: Mapping[str, Points] = field(default_factory=dict)
    gaps: Sequence[float] = ()
    last: Mapping[str, float | None] = field(default_factory=dict)
    is_cut: bool = False
    log: tuple[str, ...] = ()
    log_worker: str = ""
    log_attempt: int = 0
    error: str = ""

    def warnings(self, run: str) -> list[str]:
        """Return a list with a warning if not all lines of metrics were read, else an empty one."""
        text = f"{run}: has over {MAX_LINES:,} lines of metrics; only the first ones are read"
        return [text] if self.is_cut else []

    def to_json(self) -> str:
        """Return the summary as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> RunOutput:
        """Parse a summary that ``to_json`` wrote. Raises ValueError, TypeError or KeyError."""
        fields = json.loads(text)
        attempts = tuple(
            AttemptOutput(**{**attempt, "processes": tuple(map(_process_of, attempt["processes"]))})
            for attempt in fields["attempts"]
        )
        return cls(**{**fields, "attempts": attempts, "log": tuple(fields["log"])})


def _process_of(fields: Mapping) -> ProcessOutput:
    return ProcessOutput(**{**fields, "end": Exit(*fields["end"]) if fields["end"] else None})


class OwnSteps:
    """The steps that one attempt executed, with their times in unix seconds.

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

        ``time`` is when the step ended, in unix seconds. ``save`` is how many seconds training
        waited for a checkpoint. ``start`` is how many seconds after the trainer's start the step
        ended; it counts only for the first step. Each of the two is NaN if unknown.
        """
        if max(self._began, self.times[-1] if self.times else 0.0) <= time <= MAX_SECONDS:
            if not self.steps:
                self.start_seconds = _duration(start)
            self.steps.append(step)
            self.times.append(time)
            self.saves += _duration(save) or 0.0

    def measured(self, attempt: AttemptOutput, resumed_at: float) -> AttemptOutput:
        """Return a copy of ``attempt`` with the fields computed from its steps, such as ``kept``.

        ``resumed_at`` is the lowest step that a later attempt repeated; infinity if no attempt did.
        """
        if not self.steps:
            return attempt
        index = bisect_left(self.steps, resumed_at)
        kept_s = self.times[index - 1] - self.times[0] if index else 0.0
        return replace(
            attempt,
            first_step=int(self.steps[0]),
            first=self.times[0],
            last=self.times[-1],
            kept=kept_s,
            redone=self.times[-1] - self.times[0] - kept_s,
            saves=self.saves,
            start_seconds=self.start_seconds,
        )


def summary_of(store: OutputStore, run: str, processes: Sequence[StoredProcess]) -> RunOutput:
    """Read and summarize the stored output of a run's processes. Raises OutputError."""
    rows = Rows()
    attempts: list[AttemptOutput] = []
    own_steps: list[OwnSteps] = []
    remaining_lines, is_cut = MAX_LINES, False
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        outputs = list(pool.map(lambda process: process_output(store, process), processes))
    by_attempt = groupby(zip(processes, outputs, strict=True), lambda pair: pair[0].attempt)
    for number, group in by_attempt:
        members = list(group)
        attempt = _attempt(number, tuple(process for _, process in members))
        earlier = max((attempt.began or 0.0 for attempt in attempts), default=0.0)
        # An attempt that began before one with a lower number is from an older run of this name.
        if attempt.began is not None and attempt.began < earlier:
            continue
        attempts.append(attempt)
        # tpufleet's trainer writes metrics in process 0; other trainers may use another process.
        writer, process = next((pair for pair in members if pair[0].metrics), members[0])
        own_steps.append(OwnSteps(process.began))
        records = metrics_records(store, writer)
        remaining_lines -= add_records(rows, own_steps[-1], islice(records, remaining_lines))
        is_cut = is_cut or (not remaining_lines and next(records, None) is not None)
    resumed_at = float("inf")
    for index in reversed(range(len(attempts))):
        attempts[index] = own_steps[index].measured(attempts[index], resumed_at)
        if own_steps[index].steps:
            resumed_at = min(resumed_at, own_steps[index].steps[0])
    summary = RunOutput(attempts=tuple(attempts), is_cut=is_cut)
    summary = _with_log(store, run, processes, summary)
    if not len(rows):
        return summary
    curves = {name: curve(rows, column) for name, column in CURVES.items()}
    curves["memory"] = [(step, used / GIB) for step, used in curves["memory"]]
    last = {name: _plain(column[-1]) for name, column in rows.columns.items()}
    last |= {name: _latest(rows.columns[name]) for name in OCCASIONAL_COLUMNS}
    for name, column in MEMORY.items():
        size = _latest(rows.columns[column])
        last[name] = None if size is None else size / GIB
    return replace(
        summary,
        curves={name: points for name, points in curves.items() if points},
        gaps=gaps(rows, "loss"),
        last=last,
    )


def _with_log(
    store: OutputStore, run: str, processes: Sequence[StoredProcess], summary: RunOutput
) -> RunOutput:
    """Return ``summary`` with the fields about its log set."""
    logs = {(process.attempt, process.process_id): process for process in processes if process.log}
    attempts_with_log = {number for number, _ in logs}
    attempt = next(
        (attempt for attempt in reversed(summary.attempts) if attempt.number in attempts_with_log),
        None,
    )
    if attempt is None:
        return summary
    number = attempt.number
    candidates = [process for process in attempt.processes if (number, process.process_id) in logs]
    statuses = [process.status(run, number) for process in candidates]
    decisive = candidates[statuses.index(deciding_process(statuses))]
    lines = log_tail(store, logs[number, decisive.process_id], ERROR_LINES)
    state = decisive.state
    has_error = state.state is RunState.FAILED and state.reason_code not in KILLED_REASONS
    return replace(
        summary,
        log=tuple(lines[-LOG_LINES:]),
        log_worker=decisive.name,
        log_attempt=number,
        error=error_line(last_attempt(lines)) if has_error else "",
    )


def add_records(rows: Rows, own_steps: OwnSteps, records: Iterable[object]) -> int:
    """Add lines of metrics to ``rows`` and ``own_steps``; return the number of lines.

    ``rows`` collects the steps of all attempts, ``own_steps`` only those of the attempt that wrote
    the lines. ``records`` are the lines, parsed from JSON; invalid ones are counted but not added.
    """
    line_count = 0
    names = ("step", "time", "save_seconds", "start_seconds")
    columns = [rows.columns[name] for name in names]
    for record in records:
        line_count += 1
        if rows.add(record):
            own_steps.add(*(column[-1] for column in columns))
    return line_count


def process_output(store: OutputStore, process: StoredProcess) -> ProcessOutput:
    """Read when and where a process began, and how it ended. Raises OutputError."""
    start = read_start(store, process)
    worker, began = (start.worker, start.began) if start else ("", None)
    return ProcessOutput(process.process_id, worker, began, read_end(store, process))


def _attempt(number: int, processes: tuple[ProcessOutput, ...]) -> AttemptOutput:
    starts = [process.began for process in processes if process.began is not None]
    ends = [
        process.end.time for process in processes if process.end and process.end.time is not None
    ]
    has_ended = all(process.end for process in processes)
    return AttemptOutput(
        number,
        min(starts, default=None),
        max(ends, default=None) if has_ended else None,
        processes=processes,
    )


def _duration(seconds: float) -> float | None:
    return seconds if 0 <= seconds <= MAX_SECONDS else None


def _latest(column: Sequence[float]) -> float | None:
    """Return the last number in a column, ignoring NaN; None if there is none."""
    return next((value for value in reversed(column) if math.isfinite(value)), None)


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
