"""The status of all runs, as a table for users and as data for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...module_utils.worker.run_state import RunState
from ..view.folded_names import folded, natural_order
from .event_kind import DesiredState
from .judge import RunStatus, WorkerStatus, run_statuses, tpu_states, worker_statuses, zone_check
from .observation import FIGURES, READY, ProcessStatus
from .status import answer_error, last_activity_text, process_text, run_text, worker_text

HEAD = (
    "RUN",
    "ATTEMPT",
    "STATE",
    "STEP",
    "LOSS",
    "TOKENS/S",
    "MFU",
    "MEMORY",
    "GOODPUT",
    "HEARTBEAT",
    "WORKERS",
)
IF_REPORTED = ("MFU", "MEMORY")
"""Columns that are left out if no run reports them."""


def run_status(
    hostvars: Mapping[str, Mapping[str, Any]],
    hosts: Sequence[str],
    foreign: Mapping[str, str],
    record_result: Mapping[str, Any],
    stored: Mapping[str, Any],
    run: str = "",
    tpu: str = "",
    zones: Sequence[str] = ("-",),
    unreachable: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the status of runs and workers: ``lines`` for users, the other keys for scripts.

    Args:
        hostvars: each host's variables; ``run_observed`` is the result of run_info on a worker.
        hosts: the hosts of the play. localhost, the only host of a play without workers, is
            ignored.
        foreign: the zone of each TPU that does not belong to this fleet, by TPU name.
        record_result: the result of the module run_record.
        stored: the result of the module stored_output; empty if no stored output was read.
        run: if set, only this run is included.
        tpu: if set, the key ``wanted`` names only runs of this TPU, and wanted runs of other TPUs
            that are not READY are left out.
        zones: the zones of the inventory (``-``: all).
        unreachable: the zones of the inventory that did not answer.
    """
    worker_hosts = [host for host in hosts if host != "localhost"]
    states = {host: str(hostvars[host].get("tpu_state") or READY) for host in worker_hosts}
    answers = {host: hostvars[host].get("run_observed") or {} for host in worker_hosts}
    workers = worker_statuses(answers, states, run)
    outputs = stored.get("answers") or {}
    stored_workers = worker_statuses(outputs, dict.fromkeys(outputs, READY), run)
    record = record_result.get("record")
    records = {run: record} if record else record_result.get("records") or {}
    runs = run_statuses(
        workers,
        records,
        tpu_states(hostvars),
        tpu,
        stored=stored_workers,
        is_listed=zone_check(zones, unreachable),
    )
    wanted_runs = None
    if "record" in record_result or "records" in record_result:
        wanted_runs = [
            name
            for name, run_record in records.items()
            if run_record["wanted"] == DesiredState.RUNNING and tpu in ("", run_record["tpu"])
        ]
    is_unknown = run and not runs and record_result.get("exists") is False
    notes = (
        f"no worker has run {run}, and it has no record. To see all runs: "
        "ansible-playbook playbooks/status.yml"
        if is_unknown
        else "",
        f"The desired state of the runs is unknown: {record_result.get('msg')}"
        if wanted_runs is None
        else "",
        "" if tpu else foreign_line(foreign),
        record_result.get("last_pass") or "",
        (stored.get("msg") or "") if run else "",
    )
    return {
        "lines": status_lines(workers, runs) + list(filter(None, notes)),
        "runs": [run_fields(status) for status in runs],
        "workers": [worker_fields(worker) for worker in workers],
        "watch": record_result.get("passes") or [],
        "wanted": wanted_runs,
        "foreign": dict(foreign),
    }


def run_fields(run: RunStatus) -> dict[str, Any]:
    """Return a run's status for scripts."""
    decided_by = run.decided_by
    return {
        "run": run.run,
        "attempt": run.attempt,
        "state": run.state.value,
        "reason_code": decided_by.reason_code.value if decided_by else "",
        "host": decided_by.host if decided_by else "",
        "text": run_text(run),
        **{name: getattr(run, name) for name in (*FIGURES, "goodput")},
        "heartbeat_age": run.heartbeat_age,
        "output_age": run.output_age,
        "wanted": run.wanted or None,
        "tpu": run.tpu or None,
        "workers": run.workers,
    }


def worker_fields(worker: WorkerStatus) -> dict[str, Any]:
    """Return a worker's status as fields of the JSON output.

    These include the fields of the worker's process. If it has no process, they include the error
    with which run_info failed on it, if any.
    """
    text = worker_text(worker)
    fields = {"worker": worker.worker, "state": text, "text": text}
    if worker.process:
        process_fields = asdict(worker.process)
        codes = {name: process_fields[name].value for name in ("state", "reason_code")}
        lists = {"waiting_for": list(worker.process.waiting_for)}
        return (
            fields
            | {name: process_fields[name] for name in process_fields if name != "host"}
            | codes
            | lists
        )
    if worker.answer is not None:
        return fields | {"error": answer_error(worker.answer)}
    return fields


def status_lines(workers: Sequence[WorkerStatus], runs: Sequence[RunStatus]) -> list[str]:
    """Format a table of runs and of workers without a run, then lines with errors and deviations.

    A worker deviates if its state or attempt differs from that of its run.
    """
    rows, lines_below = [list(HEAD)], []
    for run in runs:
        rows.append(run_cells(run))
        lines_below += differing_lines(run) + error_lines(run)
    tpus_of_runs = {run.tpu for run in runs if not run.processes}
    other_workers: dict[tuple[str, str], list[str]] = {}
    for worker in workers:
        if not worker.process and worker.worker not in tpus_of_runs:
            error = "" if worker.answer is None else answer_error(worker.answer)
            other_workers.setdefault((worker_text(worker), error), []).append(worker.worker)
    for (text, error), names in other_workers.items():
        rows.append(["-", "-", text, *["-"] * (len(HEAD) - 4), folded(names)])
        if error:
            lines_below.append(f"{folded(names)}: {error}")
    columns = [
        column
        for column in zip(*rows, strict=True)
        if column[0] not in IF_REPORTED or any(cell != "-" for cell in column[1:])
    ]
    widths = [max(map(len, column)) for column in columns]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*columns, strict=True)
    ]
    return table + lines_below


def foreign_line(tpus: Mapping[str, str]) -> str:
    """Format a line about the TPUs that do not belong to this fleet; empty if there are none.

    ``tpus`` maps the name of each such TPU to its zone.
    """
    if not tpus:
        return ""
    count_text = f"{len(tpus)} TPU{'' if len(tpus) == 1 else 's'}"
    names = folded(sorted(tpus, key=natural_order))
    return f"not of this fleet: {count_text}, {names} (-e tpu=NAME shows one)"


def run_cells(run: RunStatus) -> list[str]:
    """Return the cells of a run's row in the table."""
    total = f"/{run.steps}" if run.steps is not None else ""
    return [
        run.run,
        _number(run.attempt, "{}"),
        run_text(run),
        f"{run.step}{total}" if run.step is not None else "-",
        _number(run.loss, "{:.3f}"),
        _number(run.tokens_per_second, "{:,.0f}"),
        _number(run.mfu, "{:.0%}"),
        memory_cell(run),
        _number(run.goodput, "{:.0%}"),
        last_activity_text(run),
        folded(run.workers) or run.tpu or "-",
    ]


def memory_cell(run: RunStatus) -> str:
    """Format the memory in use on the fullest device, and its limit if known."""
    if run.device_bytes is None:
        return "-"
    used = f"{run.device_bytes / 2**30:.1f}"
    limit = f"/{run.device_limit_bytes / 2**30:.1f}" if run.device_limit_bytes else ""
    return f"{used}{limit} GiB"


def differing_lines(run: RunStatus) -> list[str]:
    """Return lines about workers whose state or attempt differs from the run's.

    Workers with the same status share a line.
    """
    texts = {process_text(process) for process in run.processes}
    if run.state is RunState.STOPPED and len(texts) == 1:
        return []
    by_text: dict[str, list[ProcessStatus]] = {}
    for process in run.processes:
        older = f", attempt {process.attempt}" if process.attempt != (run.attempt or 0) else ""
        if older or process_text(process) != run_text(run):
            by_text.setdefault(f"{process_text(process)}{older}", []).append(process)
    return _worker_lines(run, by_text)


def error_lines(run: RunStatus) -> list[str]:
    """Return lines with the errors of a run's processes; equal errors share a line."""
    by_error: dict[str, list[ProcessStatus]] = {}
    for process in run.processes:
        if process.error:
            by_error.setdefault(process.error, []).append(process)
    return _worker_lines(run, by_error)


def _worker_lines(run: RunStatus, by_text: Mapping[str, Sequence[ProcessStatus]]) -> list[str]:
    return [
        f"{run.run}, {folded(process.host for process in processes)}: {text}"
        for text, processes in by_text.items()
    ]


def _number(value: float | None, template: str) -> str:
    return "-" if value is None else template.format(value)
