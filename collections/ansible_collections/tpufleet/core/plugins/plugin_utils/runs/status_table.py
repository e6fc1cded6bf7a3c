"""The status of all runs, as a table for users and as data for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...module_utils.worker.run_state import RunState
from ..view.folded_names import folded, natural_order
from .event_kind import DesiredState
from .judge import RunStatus, WorkerStatus, run_statuses, tpu_states, worker_statuses
from .observation import FIGURES, READY, ProcessStatus
from .status import answer_error, last_sign_text, process_text, run_text, worker_text

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
    facts: Mapping[str, Mapping[str, Any]],
    hosts: Sequence[str],
    foreign: Mapping[str, str],
    found: Mapping[str, Any],
    stored: Mapping[str, Any],
    run: str = "",
    tpu: str = "",
) -> dict[str, Any]:
    """Return the status of runs and workers: ``lines`` for users, the other keys for scripts.

    Args:
        facts: the variables of each host; ``run_look`` is the result of run_info on a worker.
        hosts: the hosts of the play. A play without workers has localhost, which is left out.
        foreign: the zone of each TPU that does not belong to this fleet, by TPU name.
        found: the result of the module run_record.
        stored: the result of the module stored_output; empty if no stored output was read.
        run: if set, only this run is included.
        tpu: if set, only runs wanted on this TPU are included.
    """
    shown = [host for host in hosts if host != "localhost"]
    states = {host: str(facts[host].get("tpu_state") or READY) for host in shown}
    answers = {host: facts[host].get("run_look") or {} for host in shown}
    workers = worker_statuses(answers, states, run)
    outputs = stored.get("answers") or {}
    written = worker_statuses(outputs, dict.fromkeys(outputs, READY), run)
    record = found.get("record")
    records = {run: record} if record else found.get("records") or {}
    runs = run_statuses(workers, records, tpu_states(facts), tpu, stored=written)
    wanted = None
    if "record" in found or "records" in found:
        wanted = [
            name
            for name, each in records.items()
            if each["wanted"] == DesiredState.RUNNING and tpu in ("", each["tpu"])
        ]
    is_unknown = run and not runs and found.get("exists") is False
    notes = (
        f"no worker has run {run}, and it has no record. To see all runs: "
        "ansible-playbook playbooks/status.yml"
        if is_unknown
        else "",
        f"The desired state of the runs is unknown: {found.get('msg')}" if wanted is None else "",
        "" if tpu else foreign_line(foreign),
        found.get("last_pass") or "",
        (stored.get("msg") or "") if run else "",
    )
    return {
        "lines": status_lines(workers, runs) + list(filter(None, notes)),
        "runs": [run_fields(each) for each in runs],
        "workers": [worker_fields(each) for each in workers],
        "watch": found.get("passes") or [],
        "wanted": wanted,
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
    """Return a worker's status for scripts: its process, or why it has none."""
    text = worker_text(worker)
    found = {"worker": worker.worker, "state": text, "text": text}
    if worker.process:
        known = asdict(worker.process)
        codes = {name: known[name].value for name in ("state", "reason_code")}
        lists = {"waiting_for": list(worker.process.waiting_for)}
        return found | {name: known[name] for name in known if name != "host"} | codes | lists
    if worker.answer is not None:
        return found | {"error": answer_error(worker.answer)}
    return found


def status_lines(workers: Sequence[WorkerStatus], runs: Sequence[RunStatus]) -> list[str]:
    """Format a table of the runs, then lines about errors and about workers in other states."""
    cells, below = [list(HEAD)], []
    for run in runs:
        cells.append(run_cells(run))
        below += differing(run) + errors(run)
    shown = {run.tpu for run in runs if not run.processes}
    rest: dict[tuple[str, str], list[str]] = {}
    for each in workers:
        if not each.process and each.worker not in shown:
            error = "" if each.answer is None else answer_error(each.answer)
            rest.setdefault((worker_text(each), error), []).append(each.worker)
    for (text, error), names in rest.items():
        cells.append(["-", "-", text, *["-"] * (len(HEAD) - 4), folded(names)])
        if error:
            below.append(f"{folded(names)}: {error}")
    columns = [
        column
        for column in zip(*cells, strict=True)
        if column[0] not in IF_REPORTED or any(cell != "-" for cell in column[1:])
    ]
    widths = [max(map(len, column)) for column in columns]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*columns, strict=True)
    ]
    return table + below


def foreign_line(tpus: Mapping[str, str]) -> str:
    """Format a line about the TPUs that do not belong to this fleet; empty if there are none.

    ``tpus`` maps the name of each such TPU to its zone.
    """
    if not tpus:
        return ""
    many = f"{len(tpus)} TPU{'' if len(tpus) == 1 else 's'}"
    names = folded(sorted(tpus, key=natural_order))
    return f"not of this fleet: {many}, {names} (-e tpu=NAME shows one)"


def run_cells(run: RunStatus) -> list[str]:
    """Return the cells of a run's row in the table."""
    of = f"/{run.steps}" if run.steps is not None else ""
    return [
        run.run,
        _number(run.attempt, "{}"),
        run_text(run),
        f"{run.step}{of}" if run.step is not None else "-",
        _number(run.loss, "{:.3f}"),
        _number(run.tokens_per_second, "{:,.0f}"),
        _number(run.mfu, "{:.0%}"),
        memory_cell(run),
        _number(run.goodput, "{:.0%}"),
        last_sign_text(run),
        folded(run.workers) or run.tpu or "-",
    ]


def memory_cell(run: RunStatus) -> str:
    """Format the memory in use on the fullest device, and its limit if known."""
    if run.device_bytes is None:
        return "-"
    used = f"{run.device_bytes / 2**30:.1f}"
    limit = f"/{run.device_limit_bytes / 2**30:.1f}" if run.device_limit_bytes else ""
    return f"{used}{limit} GiB"


def differing(run: RunStatus) -> list[str]:
    """Return lines about workers whose state or attempt differs from the run's.

    Workers with the same status share a line.
    """
    texts = {process_text(each) for each in run.processes}
    if run.state is RunState.STOPPED and len(texts) == 1:
        return []
    found: dict[str, list[ProcessStatus]] = {}
    for each in run.processes:
        older = f", attempt {each.attempt}" if each.attempt != (run.attempt or 0) else ""
        if older or process_text(each) != run_text(run):
            found.setdefault(f"{process_text(each)}{older}", []).append(each)
    return _named(run, found)


def errors(run: RunStatus) -> list[str]:
    """Return lines with the errors of a run's processes; equal errors share a line."""
    found: dict[str, list[ProcessStatus]] = {}
    for each in run.processes:
        if each.error:
            found.setdefault(each.error, []).append(each)
    return _named(run, found)


def _named(run: RunStatus, found: Mapping[str, Sequence[ProcessStatus]]) -> list[str]:
    return [
        f"{run.run}, {folded(each.host for each in processes)}: {text}"
        for text, processes in found.items()
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
