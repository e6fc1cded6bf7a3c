"""What the report shows of each run, from its record, its stored output and its workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...module_utils.worker.run_state import ReasonCode, RunState
from ..outputs.stored_answers import progress_of, stored_answers
from ..outputs.summary import AttemptOutput, RunOutput
from ..runs import history
from ..runs.event_kind import RECREATIONS, DesiredState, EventKind
from ..runs.goodput import by_cause, launch_times
from ..runs.judge import (
    WorkerStatus,
    has_finished,
    judge_process,
    judge_run,
    judge_stored_run,
    tpu_state_of,
)
from ..runs.observation import ProcessStatus, deciding_process
from ..runs.status import event_text, process_text, run_text, state_text
from ..runs.wanted_time import wanted_time
from .report_view import (
    CRASH,
    DONE,
    KILL,
    LAUNCH,
    OTHER,
    PREEMPTED,
    RESTART,
    Attempt,
    Event,
    RunView,
)

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
_SETTING = re.compile(r"[A-Za-z_][\w.-]*")


def kind_of(event: history.Event) -> str:
    """Return the kind of an event of a run's history: a constant of report_view.py."""
    if event.kind is EventKind.WATCH and event.action in RECREATIONS:
        return PREEMPTED
    if event.kind is EventKind.WATCH and event.state:
        return _WATCH_STATES.get(event.state, OTHER)
    return _KINDS.get(event.kind, OTHER)


def events_of(record: Mapping[str, Any]) -> list[Event]:
    """Return the events in a record's history, oldest first."""
    events = []
    for fields in record.get("history") or []:
        event = history.parse_event(fields, float(fields.get("time") or 0.0))
        events.append(Event(event.time, kind_of(event), event_text(event)))
    return sorted(events, key=lambda event: event.time)


def attempts_of(
    record: Mapping[str, Any],
    events: Sequence[Event],
    output: RunOutput,
    now: float,
    is_active: bool = False,
) -> list[Attempt]:
    """Return the attempts of a run, from its stored output and the events of its record.

    The record also has launches whose workers stored no output. ``now`` is in unix seconds, and
    ``is_active`` is whether the last attempt has not ended.
    """
    stored = {attempt.number: attempt for attempt in output.attempts}
    start_by_attempt = {number: time for number, time in launch_times(record).items() if number > 0}
    for number, attempt in stored.items():
        if attempt.began is not None:
            start_by_attempt[number] = attempt.began
    starts = sorted(start_by_attempt.items())
    attempts = []
    for index, (number, start) in enumerate(starts):
        next_start = starts[index + 1][1] if index + 1 < len(starts) else None
        stored_attempt = stored.get(number, AttemptOutput(number))
        if next_start is None and is_active:
            attempts.append(Attempt(number, start, now, first_step=stored_attempt.first_step))
            continue
        ends = [
            event
            for event in events
            if event.kind in ENDS
            and event.time > start
            and (next_start is None or event.time <= next_start)
        ]
        attempts.append(_ended(stored_attempt, start, next_start, ends[0] if ends else None))
    return attempts


def _ended(
    output: AttemptOutput, start: float, next_start: float | None, event: Event | None
) -> Attempt:
    """Return what the report shows of an attempt that has ended.

    ``next_start`` is when the next attempt began, None for the last attempt. ``event`` is the first
    one that may have ended the attempt.
    """
    statuses = [process.status("", output.number) for process in output.processes]
    status = deciding_process(statuses) if statuses else None
    ended_at = output.ended or (event.time if event else next_start) or output.last or start
    if event and event.kind == PREEMPTED:
        kind, ending = PREEMPTED, state_text(RunState.PREEMPTED)
    elif status and status.state is not RunState.LOST:
        kind, ending = _end_kind(status), process_text(status)
    else:
        kind, ending = (
            (event.kind, event.text) if event else (OTHER if next_start is not None else "", "")
        )
    return Attempt(output.number, start, max(start, ended_at), kind, ending, output.first_step)


def _end_kind(process: ProcessStatus) -> str:
    if process.state is RunState.DONE:
        return DONE
    was_interrupted = process.reason_code in (ReasonCode.SAVED, ReasonCode.NOT_SAVED)
    return KILL if was_interrupted else CRASH


def run_view(
    run: str,
    record: Mapping[str, Any],
    live: Mapping[str, Mapping[str, Any]],
    output: RunOutput,
    tpu_state: str,
    now: float,
) -> RunView:
    """Return what the report shows of a run.

    ``live`` is what run_info returned about the run, by worker. If it is empty because the TPU is
    gone, the status comes from the stored ``output``. ``tpu_state`` is the state of the TPU in the
    inventory, and ``now`` is in unix seconds.
    """
    events = events_of(record)
    answers = live or {
        host: answer["runs"][0] for host, answer in stored_answers(run, output, {}).items()
    }
    progress = progress_of(output)
    worker_statuses = [
        WorkerStatus(host, judge_process(host, answer), progress=progress)
        for host, answer in answers.items()
    ]
    status = (
        judge_run(run, worker_statuses, record, now)
        if live
        else judge_stored_run(run, worker_statuses, record, tpu_state, now)
    )
    if has_finished(record, status.processes):
        # Show the run as done, although the record does not say so yet: the next playbook that
        # observes the end of the run will record it.
        done_fields = {"wanted": str(DesiredState.DONE)}
        status = replace(status, state=RunState.DONE)
        record = {
            **record,
            **done_fields,
            **wanted_time(record, done_fields, {"kind": EventKind.DONE}, now),
        }
    is_active = any(process.is_active for process in status.processes)
    attempts = attempts_of(record, events, output, now, is_active)
    change_times = [attempt.end for attempt in attempts] + [event.time for event in events]
    has_failed = status.state is RunState.FAILED
    time_spent = by_cause(record, output.attempts, now) if is_complete(output) else None
    return RunView(
        run,
        wanted=str(record.get("wanted") or "no record"),
        tpu=str(record.get("tpu") or ""),
        release=str(record.get("release") or ""),
        curves=output.curves,
        last=output.last,
        steps=status.steps,
        events=events,
        attempts=attempts,
        workers=status.processes,
        goodput=time_spent.share if time_spent else status.goodput,
        state=run_text(status),
        state_code=status.state,
        config=str(record.get("config_name") or ""),
        overrides=overrides_of(record.get("command") or ()),
        gaps=output.gaps,
        goodput_by_cause=time_spent.seconds if time_spent else None,
        reason=(status.decided_by.error if status.decided_by else "") if has_failed else "",
        log=output.log,
        log_from=f"{output.log_worker}, attempt {output.log_attempt}" if output.log else "",
        changed=max(change_times, default=0.0),
    )


def is_complete(output: RunOutput) -> bool:
    """Return whether the run's output is stored from its first attempt on.

    The first attempt is missing if it was launched without a bucket, or if a lifecycle rule of the
    bucket has deleted its output.
    """
    first = output.attempts[0] if output.attempts else None
    return first is not None and first.number == 1 and first.began is not None


def overrides_of(command: Sequence[str]) -> dict[str, str]:
    """Return the settings in a trainer's command: its arguments key=value and --key=value."""
    pairs = (argument.lstrip("-").partition("=") for argument in command)
    return {key: value for key, separator, value in pairs if separator and _SETTING.fullmatch(key)}


def run_views(
    records: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
    outputs: Mapping[str, RunOutput],
    tpu_states: Mapping[str, str],
    now: float,
    only: str = "",
    is_listed: Callable[[str], bool] = lambda _zone: True,
) -> list[RunView]:
    """Return the views of all runs that have a record or files on a worker.

    The most recently changed run is first. ``answers`` maps each worker to its result of run_info.
    ``tpu_states`` has the state of each TPU in the inventory (judge.tpu_states). ``now`` is in unix
    seconds, ``only`` is the name of the only run to return (empty for all), and ``is_listed``
    returns whether the inventory has listed the TPUs of a zone.
    """
    by_run: dict[str, dict[str, Mapping[str, Any]]] = {run: {} for run in records}
    for host, answer in answers.items():
        for observation in answer.get("runs", []):
            if observation.get("attempt"):
                by_run.setdefault(str(observation["run"]), {})[host] = observation
    views = []
    for run, live in by_run.items():
        if only not in ("", run):
            continue
        record, output = records.get(run, {}), outputs.get(run, RunOutput())
        try:
            tpu_state = tpu_state_of(record, tpu_states, is_listed)
            view = run_view(run, record, live, output, tpu_state, now)
        except Exception as error:  # an error of one run must not affect the others
            state = f"its output can't be shown ({type(error).__name__}: {error!s:.80})"
            wanted = str(record.get("wanted") or "no record")
            view = RunView(run, wanted, str(record.get("tpu") or ""), state=state)
        views.append(view)
    return sorted(views, key=lambda view: (view.changed, view.name), reverse=True)
