"""The status of runs, from the results of run_info on all their workers and the run records."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...module_utils.cloud.names import includes_zone
from ...module_utils.worker.run import current_runs
from ...module_utils.worker.run_state import RunState
from ..fleet.ownership import FOREIGN_GROUP
from ..fleet.slices import run_tpu_names
from ..view.folded_names import natural_order
from .event_kind import DesiredState, EventKind
from .goodput import goodput
from .observation import (
    DEAD,
    GONE,
    NOT_LISTED,
    READY,
    Figures,
    ProcessStatus,
    deciding_process,
    parse_process,
)

HUNG_AFTER_S = 600.0
"""A process is HUNG if its last heartbeat is older than this, in seconds (the watch's default).

Before the first step, the age does not count, because compilation may take longer.
"""


@dataclass(frozen=True)
class WorkerStatus:
    """A worker, and the run that is active on it or ended there last.

    Args:
        worker: the worker's name in the inventory.
        process: the run's process; None if the worker has no run.
        tpu_state: the state of the worker's TPU if it is not READY.
        answer: Ansible's result of run_info if the module failed on the worker.
        progress: what run_info returned for goodput (module_utils/worker/run_progress.py).
    """

    worker: str
    process: ProcessStatus | None = None
    tpu_state: str = ""
    answer: Mapping[str, Any] | None = None
    progress: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RunStatus(Figures):
    """The status of a run on all its workers, with its progress.

    Until the last attempt has finished a step, ``step`` is the step from which the attempt starts.

    Args:
        run: the run's name.
        state: the state of the run.
        wanted: the desired state; empty without a record.
        attempt: the number of the newest attempt.
        decided_by: the process that decides the state; None if no process does.
        tpu: the TPU in the run record.
        tpu_state: the state of that TPU if it is not READY.
        processes: the run's processes on all workers.
        goodput: between 0 and 1; None if unknown, like the values below.
        heartbeat_age: the largest age of an active process's last heartbeat, in seconds.
        output_age: the smallest age of a process's last output, in seconds, if none of the active
            processes has a heartbeat.
    """

    run: str
    state: RunState
    wanted: str = ""
    attempt: int | None = None
    decided_by: ProcessStatus | None = None
    tpu: str = ""
    tpu_state: str = ""
    processes: tuple[ProcessStatus, ...] = ()
    goodput: float | None = None
    heartbeat_age: float | None = None
    output_age: float | None = None

    @property
    def workers(self) -> list[str]:
        """The workers that have a process of the run."""
        return [process.host for process in self.processes]


def worker_statuses(
    answers: Mapping[str, Mapping[str, Any]], tpu_states: Mapping[str, str], run: str = ""
) -> list[WorkerStatus]:
    """Return one status for each run of each worker, and one for a worker without runs.

    The workers are in natural order (w2 before w10).

    Args:
        answers: the result of run_info by worker.
        tpu_states: the state of the TPU by worker.
        run: the only run to return. If empty, return a worker's active runs; if it has none, the
            run that ended last.
    """
    statuses: list[WorkerStatus] = []
    for host in sorted(tpu_states, key=natural_order):
        answer, tpu_state = answers.get(host) or {}, str(tpu_states[host])
        if tpu_state != READY:
            statuses.append(WorkerStatus(host, tpu_state=tpu_state))
        elif "runs" not in answer:
            statuses.append(WorkerStatus(host, answer=answer))
        else:
            runs = answer["runs"]
            selected = (
                [report for report in runs if report["run"] == run] if run else current_runs(runs)
            )
            statuses += [
                WorkerStatus(host, judge_process(host, report), progress=report.get("progress"))
                for report in selected
            ] or [WorkerStatus(host)]
    return statuses


def judge_process(host: str, answer: Mapping[str, Any]) -> ProcessStatus:
    """Parse a worker's report about a run: an entry of ``runs`` in the result of run_info.

    The state of an active process is HUNG if its heartbeat is too old (see HUNG_AFTER_S).
    """
    process = parse_process(host, answer)
    age = process.heartbeat_age
    if process.is_active and process.step and age is not None and age > HUNG_AFTER_S:
        return replace(process, state=RunState.HUNG)
    return process


def run_statuses(
    workers: Sequence[WorkerStatus],
    records: Mapping[str, Mapping[str, Any]],
    tpu_states: Mapping[str, str],
    tpu: str = "",
    now: float | None = None,
    stored: Sequence[WorkerStatus] = (),
    is_listed: Callable[[str], bool] = lambda _zone: True,
) -> list[RunStatus]:
    """Return the status of each run.

    Includes all runs that a worker reports, and two kinds of other runs with a record: those in
    ``stored``, and wanted runs whose TPU is not READY.

    Args:
        workers: the status of each worker and run.
        records: the run records by run name; a run may have none.
        tpu_states: the state of each TPU in the inventory (see tpu_states).
        tpu: of the wanted runs whose TPU is not READY, only those on this TPU are returned; empty
            for all.
        now: unix seconds; by default the current time.
        stored: for runs that no worker has any more, the last status of each of their workers,
            from stored output.
        is_listed: returns whether the inventory lists the TPUs of a zone.
    """
    by_run: dict[str, list[WorkerStatus]] = {}
    for worker in workers:
        if worker.process:
            by_run.setdefault(worker.process.run, []).append(worker)
    now = time.time() if now is None else now
    statuses = [
        judge_run(run, run_workers, records.get(run) or {}, now)
        for run, run_workers in by_run.items()
    ]
    for run, record in sorted(records.items()):
        run_tpu = str(record.get("tpu") or "")
        state = tpu_state_of(record, tpu_states, is_listed)
        is_lost = record.get("wanted") == DesiredState.RUNNING and run_tpu and state != READY
        stored_workers = [
            worker for worker in stored if worker.process and worker.process.run == run
        ]
        if run not in by_run and (stored_workers or (is_lost and tpu in ("", run_tpu))):
            statuses.append(judge_stored_run(run, stored_workers, record, state, now))
    return statuses


def judge_stored_run(
    run: str,
    workers: Sequence[WorkerStatus],
    record: Mapping[str, Any],
    tpu_state: str,
    now: float,
) -> RunStatus:
    """Return the status of a run that no worker has, from its stored output and its record.

    If the record has a later attempt than the stored output, the end of the stored attempt is
    ignored. If no end is stored although the TPU is READY, the state is UNKNOWN, because this play
    may not have asked the TPU's workers.

    Args:
        run: the run's name.
        workers: the workers of its last stored attempt; empty if no output is stored.
        record: the run record.
        tpu_state: the state of the TPU in the record.
        now: unix seconds.
    """
    desired_state, tpu = str(record.get("wanted") or ""), str(record.get("tpu") or "")
    status = RunStatus(run, RunState.UNKNOWN, desired_state, tpu=tpu)
    if workers:
        status = judge_run(run, workers, record, now)
    is_older = (status.attempt or 0) < (record.get("attempt") or 0)
    has_no_end = status.state is RunState.LOST and tpu_state == READY
    if status.state is not RunState.STOPPED and (is_older or has_no_end):
        status = replace(status, state=RunState.UNKNOWN, decided_by=None, processes=())
    step = (record.get("watch") or {}).get("best_step") or None
    status = replace(
        status,
        attempt=record.get("attempt") or status.attempt,
        step=step if status.step is None else status.step,
    )
    if desired_state == DesiredState.DONE:
        return replace(status, state=RunState.DONE, decided_by=None)
    has_ended = status.state in (RunState.FAILED, RunState.DONE)
    if desired_state != DesiredState.RUNNING or tpu_state == READY or has_ended:
        return status
    state = RunState.PREEMPTED if tpu_state in DEAD else RunState.WAITING_FOR_TPU
    return replace(status, state=state, tpu_state=tpu_state, decided_by=None, processes=())


def judge_run(
    run: str, workers: Sequence[WorkerStatus], record: Mapping[str, Any], now: float
) -> RunStatus:
    """Return the status of a run with processes on ``workers``.

    Step, loss and speed come from the first worker with a step in its heartbeat. ``record`` is the
    run record, ``now`` is in unix seconds.
    """
    processes = tuple(worker.process for worker in workers if worker.process)
    lead = next(
        (process for process in processes if process.reached_step is not None), processes[0]
    )
    decisive = deciding_process(processes)
    state = decisive.state
    if was_stopped(record) and not any(process.is_active for process in processes):
        state = RunState.STOPPED
    heartbeat_ages = [process.heartbeat_age for process in processes if process.is_active]
    heartbeat_ages = [age for age in heartbeat_ages if age is not None]
    output_ages = [process.output_age for process in processes if not process.has_heartbeat]
    end_times = [process.ended_at for process in processes if process.ended_at]
    until = max(end_times) if state is RunState.DONE and end_times else now
    fullest = max(processes, key=lambda process: process.device_bytes or 0)
    progress = next((worker.progress for worker in workers if worker.progress), None)
    return RunStatus(
        run,
        state,
        str(record.get("wanted") or ""),
        max(process.attempt for process in processes) or None,
        decisive,
        str(record.get("tpu") or ""),
        processes=processes,
        step=lead.reached_step,
        steps=lead.steps,
        loss=lead.loss,
        tokens_per_second=lead.tokens_per_second,
        mfu=lead.mfu,
        device_bytes=fullest.device_bytes,
        device_limit_bytes=fullest.device_limit_bytes,
        goodput=goodput(progress, record, until),
        heartbeat_age=max(heartbeat_ages, default=None),
        output_age=None
        if heartbeat_ages
        else min((age for age in output_ages if age is not None), default=None),
    )


def was_stopped(record: Mapping[str, Any]) -> bool:
    """Return whether a user stopped the run, according to the last event in its record."""
    events = record.get("history") or [{}]
    stopped_by_user = events[-1].get("kind") == EventKind.STOPPED
    return record.get("wanted") == DesiredState.STOPPED and stopped_by_user


def finished_runs(
    answers: Mapping[str, Mapping[str, Any]], records: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the ``run`` and ``attempt`` of the runs that are done but not yet recorded as done.

    ``answers`` maps each worker to its result of the module run_info (all runs) or run (one run).
    ``records`` maps each run to its record.
    """
    finished = []
    for run, record in sorted(records.items()):
        processes = [
            parse_process(host, report)
            for host, answer in answers.items()
            for report in [*answer.get("runs", []), answer.get("info")]
            if report and report["run"] == run
        ]
        if has_finished(record, processes):
            finished.append({"run": run, "attempt": record["attempt"]})
    return finished


def has_finished(record: Mapping[str, Any], processes: Sequence[ProcessStatus]) -> bool:
    """Return whether a run is done but not yet recorded as done.

    A run is done if every process of the recorded attempt has exited with 0, even if a user has
    stopped the run since. ``processes`` are the run's processes on all workers.
    """
    last_processes = [process for process in processes if process.attempt == record.get("attempt")]
    return (
        record.get("wanted") != DesiredState.DONE
        and len(last_processes) == record.get("workers")
        and all(process.state is RunState.DONE for process in last_processes)
    )


def tpu_state_of(
    record: Mapping[str, Any],
    tpu_states: Mapping[str, str],
    is_listed: Callable[[str], bool],
) -> str:
    """Return the state of the TPU in a run record. See tpu_states() for ``tpu_states``.

    This is the TPU with the id in the record, or else a later TPU of this fleet with its name. A
    TPU without hosts is GONE if the inventory lists all its zones (``is_listed``), else NOT_LISTED.
    """
    nodes = record.get("nodes") or ()
    states = [tpu_states.get(str(node.get("id") or ""), "") for node in nodes]
    if states and all(states):
        return next((state for state in states if state != READY), READY)
    zones = [str(node.get("zone")) for node in nodes]
    missing = GONE if all(map(is_listed, zones)) else NOT_LISTED
    return tpu_states.get(str(record.get("tpu") or ""), missing)


def zone_check(zones: Collection[str], unreachable: Collection[str]) -> Callable[[str], bool]:
    """Return the function that says whether the inventory has listed the TPUs of a zone.

    ``zones`` are the inventory's zones (``-``: all), ``unreachable`` those that did not answer.
    """
    return lambda zone: zone not in unreachable and includes_zone(zones, zone)


def tpu_states(hostvars: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the state of each TPU by id, and of this fleet's TPUs also by name.

    The name of a multislice is ``multislice_NAME``. It has the state of its first slice that is not
    READY, or is READY if there is none. ``hostvars`` maps each host to its variables.
    """
    states: dict[str, str] = {}
    for variables in hostvars.values():
        state = str(variables.get("tpu_state") or "")
        is_foreign = FOREIGN_GROUP in variables.get("group_names", ())
        keys = [] if is_foreign else run_tpu_names(variables)
        for key in filter(None, (*keys, str(variables.get("tpu_id") or ""))):
            if states.get(key, READY) == READY:
                states[key] = state
    return states
