"""The contents of a report: each run, from its record and the answers of its workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...module_utils.worker.run_state import ReasonCode, RunState
from ..runs import history
from ..runs.decision import Action
from ..runs.history import EventKind
from ..runs.observation import ProcessStatus, parse_process
from ..runs.status import event_text, process_text, state_text

LAUNCH, PREEMPTED, CRASH, RESTART, KILL, DONE = (
    *("launch", "preempted", "crash", "restart", "kill", "done"),
)
OTHER = "other"
RECREATIONS = (Action.RECREATE, Action.REPLACE)
ENDS = (PREEMPTED, CRASH, RESTART, KILL, DONE)
_KINDS = {
    EventKind.LAUNCHED: LAUNCH,
    EventKind.LAUNCH_FAILED: CRASH,
    EventKind.STOPPED: KILL,
    EventKind.RESTARTED: RESTART,
    EventKind.DONE: DONE,
}
_WATCH_STATES = {
    RunState.PREEMPTED: PREEMPTED,
    RunState.DONE: DONE,
    RunState.STOPPED: KILL,
    RunState.FAILED: CRASH,
    RunState.GIVEN_UP: CRASH,
    RunState.HUNG: RESTART,
    RunState.PARTLY_ENDED: RESTART,
    RunState.INTERRUPTED: RESTART,
    RunState.LOST: RESTART,
    RunState.MAINTENANCE: RESTART,
}


@dataclass(frozen=True)
class Event:
    """An event of a run at ``time`` in unix seconds; ``kind`` is LAUNCH, DONE, CRASH or similar."""

    time: float
    kind: str
    what: str


@dataclass(frozen=True)
class Attempt:
    """One attempt, from ``start`` to ``end`` in unix seconds.

    ``ended`` is the kind of its end; empty if it is active or the end is unknown. ``how`` says how
    it ended, such as ``crashed (exit 1)``. ``first_step`` is the first step that it has metrics of.
    """

    number: int
    start: float
    end: float
    ended: str = ""
    how: str = ""
    first_step: int | None = None


@dataclass(frozen=True)
class Worker:
    """The status of a run on a worker."""

    name: str
    state: str
    attempt: int | None = None
    step: int | None = None
    steps: int | None = None
    beat_age: float | None = None


Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class RunView:
    """A run in the report; texts may have any characters, numbers are finite.

    Args:
        state: the text for ``state_code``, such as ``crashed (exit 1)``.
        curves: points (step, value) sorted by step, by the names loss, heldout, rate (tokens per
            second), mfu (0 to 1), memory (GiB of the fullest device) and times (unix seconds).
        gaps: the steps at which the loss becomes NaN.
        last: the values of the last step: step, loss, heldout_loss, tokens_per_second, mfu,
            device_memory_gib.
        steps: the number of steps after which the run is done.
        goodput: between 0 and 1, None if unknown.
        goodput_by_cause: the wanted seconds by Spent (runs/wanted_time.py).
        overrides: the settings key=value of the run's command.
        reason: why the run ended badly, empty if it did not.
        log: the last lines of the log that ``log_from`` wrote, such as ``pod-w0, attempt 2``.
        changed: when the run last gave a sign, in unix seconds; 0 if unknown.
    """

    name: str
    wanted: str
    tpu: str = ""
    release: str = ""
    curves: Mapping[str, Points] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None
    events: Sequence[Event] = ()
    attempts: Sequence[Attempt] = ()
    workers: Sequence[Worker] = ()
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


def kind_of(event: history.Event) -> str:
    """Return the report's kind for an event of the history."""
    if event.kind is EventKind.WATCH and event.action in RECREATIONS:
        return PREEMPTED
    if event.kind is EventKind.WATCH and event.state:
        return _WATCH_STATES.get(event.state, OTHER)
    return _KINDS.get(event.kind, OTHER)


def events_of(record: Mapping[str, Any]) -> list[Event]:
    """Return the events in a record's history, oldest first."""
    found = []
    for each in record.get("history") or []:
        event = history.parse_event(each, float(each.get("time") or 0.0))
        found.append(Event(event.time, kind_of(event), event_text(event)))
    return sorted(found, key=lambda event: event.time)


def attempts_of(
    record: Mapping[str, Any],
    events: Sequence[Event],
    leader: Mapping[str, Any],
    now: float,
) -> list[Attempt]:
    """Return the attempts of a run, from its record and its metrics.

    ``leader`` is the answer of the worker with the metrics. The record is needed, too, since the
    metrics on a recreated TPU do not contain earlier attempts.
    """
    logged = {
        int(each["attempt"]): float(each["time"])
        for each in (leader.get("metrics") or {}).get("attempts", [])
    }
    launches = [event.time for event in events if event.kind == LAUNCH]
    # The record has the number of the last attempt, and its history the time of that launch.
    newest = int(record.get("attempt") or (max(logged, default=0)))
    recorded = {newest - back: when for back, when in enumerate(reversed(launches))}
    starts = sorted(
        ({number: when for number, when in recorded.items() if number > 0} | logged).items()
    )
    found = []
    for place, (number, start) in enumerate(starts):
        until = starts[place + 1][1] if place + 1 < len(starts) else None
        ends = [
            event
            for event in events
            if event.kind in ENDS and event.time > start and (until is None or event.time <= until)
        ]
        if ends:
            found.append(Attempt(number, start, ends[0].time, ends[0].kind))
        elif until is not None:
            found.append(Attempt(number, start, until, OTHER))
        else:
            found.append(_last_attempt(number, start, leader, now))
    return found


def _last_attempt(number: int, start: float, leader: Mapping[str, Any], now: float) -> Attempt:
    process = parse_process("", leader)
    if process.is_active:
        return Attempt(number, start, now)
    if leader and process.state is not RunState.LOST:
        return Attempt(number, start, max(start, process.ended_at or now), _end_kind(process))
    last = ((leader.get("metrics") or {}).get("last") or {}).get("time")
    return Attempt(number, start, max(start, float(last or start)))


def _end_kind(process: ProcessStatus) -> str:
    if process.state is RunState.DONE:
        return DONE
    was_interrupted = process.reason_code in (ReasonCode.SAVED, ReasonCode.NOT_SAVED)
    return KILL if was_interrupted else CRASH


def goodput_of(attempts: Sequence[Attempt], work: Iterable[Sequence[float]]) -> float | None:
    """Return the goodput: the fraction of time since the first launch spent in useful steps.

    ``work`` are the intervals of useful steps in unix seconds. Repeated steps, the time between
    attempts, compilation and waiting are not useful.
    """
    stretches = [(first, last) for first, last in work]
    if not attempts or not stretches:
        return None
    begin, end = attempts[0].start, max(attempt.end for attempt in attempts)
    end = max(end, *(last for _, last in stretches))
    begin = min(begin, *(first for first, _ in stretches))
    return sum(last - first for first, last in stretches) / (end - begin) if end > begin else None


def curves_of(metrics: Mapping[str, Any]) -> dict[str, Points]:
    """Return the points of a run's curves by name: loss, heldout, rate."""
    names = ("loss", "heldout", "rate")
    return {name: [(float(x), float(y)) for x, y in metrics.get(name, [])] for name in names}


def leader_of(answers: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the answer of the worker with the most rows of metrics; process 0 wins a tie."""
    if not answers:
        return {}

    def rank(answer: Mapping[str, Any]) -> tuple[int, bool]:
        rows = int((answer.get("metrics") or {}).get("rows", 0))
        return rows, (answer.get("launched") or {}).get("process_id") == 0

    return max(answers.values(), key=rank)


def run_view(
    run: str, record: Mapping[str, Any], answers: Mapping[str, Mapping[str, Any]], now: float
) -> RunView:
    """Return what the report shows of a run; ``answers`` has report_look's results, by worker."""
    leader = leader_of(answers)
    metrics = leader.get("metrics") or {}
    events = events_of(record)
    attempts = attempts_of(record, events, leader, now)
    beat = leader.get("heartbeat") or {}
    wanted = str(record.get("wanted") or "no record")
    process = parse_process("", leader)
    known = RunState(wanted) if wanted in ("done", "stopped") else RunState.UNREACHABLE
    state = process.state if leader else known
    ends = [attempt.end for attempt in attempts] + [event.time for event in events]
    return RunView(
        run,
        wanted,
        str(record.get("tpu") or ""),
        str(record.get("release") or leader.get("release") or ""),
        curves_of(metrics),
        metrics.get("last") or {},
        _whole(beat.get("steps")),
        events,
        attempts,
        [_worker(name, answer) for name, answer in answers.items()],
        goodput_of(attempts, metrics.get("work", [])),
        state=process_text(process) if leader else state_text(state),
        state_code=state,
        gaps=[float(step) for step in metrics.get("gaps", [])],
        changed=max(ends, default=0.0),
    )


def _worker(name: str, answer: Mapping[str, Any]) -> Worker:
    process = parse_process(name, answer)
    return Worker(
        name,
        process_text(process),
        process.attempt or None,
        process.step,
        process.steps,
        process.heartbeat_age if process.is_active else None,
    )


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def run_views(
    records: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
    now: float,
    only: str = "",
) -> list[RunView]:
    """Return all runs that have a record or are on a worker, most recently changed first."""
    by_run: dict[str, dict[str, Mapping[str, Any]]] = {run: {} for run in records}
    for host, answer in answers.items():
        for seen in answer.get("runs", []):
            by_run.setdefault(str(seen["run"]), {})[host] = seen
    views = [
        run_view(run, records.get(run, {}), found, now)
        for run, found in by_run.items()
        if only in ("", run)
    ]
    return sorted(views, key=_changed, reverse=True)


def _changed(view: RunView) -> tuple[float, str]:
    return max((attempt.end for attempt in view.attempts), default=0.0), view.name
