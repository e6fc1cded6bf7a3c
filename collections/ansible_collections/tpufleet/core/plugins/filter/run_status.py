"""Filters for status.yml and logs.yml: many workers' answers as one screen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..module_utils.worker.run import DONE, latest
from ..module_utils.worker.run_progress import goodput
from ..plugin_utils.fleet.tpu_slices import run_places
from ..plugin_utils.runs.watch_decision import DEAD, GONE
from ..plugin_utils.view.folded_names import folded
from .runs import Answer, why

HUNG_SECONDS = 600
"""As the watch has it; before the first step a compilation may take longer."""

HEAD = (
    "RUN",
    "ATTEMPT",
    "STATE",
    "STEP",
    "LOSS",
    "TOKENS/S",
    "GOODPUT",
    "HEARTBEAT",
    "WORKERS",
)

CALM = ("done", "interrupted, saved", "idle", "starting", "running", "training", "stopping")


def status_rows(
    answers: Mapping[str, Answer], states: Mapping[str, str], run: str = ""
) -> list[dict[str, Any]]:
    """Give one row a worker (and run): for TPUs that aren't READY their state stands for it.

    ``states`` holds each host's tpu_state; ``run`` keeps that one only. Without it each worker
    shows its active run, else the run that was launched last.
    """
    rows = []
    for host in sorted(states, key=natural):
        answer = answers.get(host) or {}
        if states[host] != "READY":
            rows.append({"worker": host, "state": str(states[host]).lower()})
        elif "runs" not in answer:
            state = "unreachable" if answer.get("unreachable") else "unknown"
            rows.append({"worker": host, "state": state, "reason": why(answer)})
        else:
            shown = (
                [seen for seen in answer["runs"] if seen["run"] == run]
                if run
                else latest(answer["runs"])
            )
            rows += [row(host, seen) for seen in shown] or [{"worker": host, "state": "idle"}]
    return rows


def row(host: str, seen: Answer) -> dict[str, Any]:
    """Give the row of one run on one worker."""
    beat = seen["heartbeat"] or {}
    quiet = seen["heartbeat_age"] if seen["active"] else None
    values = {key: beat.get(key) for key in ("step", "steps", "loss", "tokens_per_second")}
    return {
        "worker": host,
        "run": seen["run"],
        "attempt": seen["attempt"],
        "state": hung(seen["state"], quiet, beat.get("step")),
        "active": seen["active"],
        **values,
        "heartbeat_age": quiet,
        "output_age": None if beat else seen.get("output_age"),
        "error": str(seen.get("error") or ""),
        "ended": (seen["exit"] or {}).get("time"),
        "progress": seen.get("progress"),
    }


def hung(state: str, quiet_s: float | None, step: Any) -> str:
    """Say instead of a state that nothing has been heard for long."""
    if quiet_s is not None and step and quiet_s > HUNG_SECONDS:
        return f"hung, no heartbeat for {quiet_s:.0f} s"
    return state


def run_state(rows: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> str:
    """Say how a run stands as a whole: what went wrong first, else whom it waits for, else what
    most of it does."""
    states = [str(each["state"]) for each in rows]
    active = any(each["active"] for each in rows)
    last = (record.get("history") or [{}])[-1].get("what", "")
    if record.get("wanted") == "stopped" and not active and str(last).startswith("stopped by"):
        return "stopped by you"
    told = [state for state in states if not state.startswith("ended as ")]
    bad = [state for state in told if state not in CALM and not state.startswith("waiting for ")]
    waiting = [state for state in told if state.startswith("waiting for ")]
    if bad or waiting:
        return (bad or waiting)[0]
    return Counter(told or states).most_common(1)[0][0]


def status_runs(
    rows: Sequence[Mapping[str, Any]],
    records: Mapping[str, Mapping[str, Any]],
    nodes: Mapping[str, str],
    only: str = "",
    now: float | None = None,
) -> list[dict[str, Any]]:
    """Give how each run stands as a whole: those that a worker has, and those that are wanted on a
    TPU that is not READY.

    ``records`` holds each run's record as far as there are any, ``nodes`` the state of each TPU in
    the inventory by its name, ``only`` leaves out those wanted on another. ``goodput`` is a share
    of 1; what is unknown is None.
    """
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for each in rows:
        if "run" in each:
            parts.setdefault(each["run"], []).append(each)
    found = [
        one_run(name, mine, records.get(name) or {}, time.time() if now is None else now)
        for name, mine in parts.items()
    ]
    for name, record in sorted(records.items()):
        tpu = str(record.get("tpu") or "")
        if name in parts or record.get("wanted") != "running" or not tpu:
            continue
        state = nodes.get(tpu, GONE)
        if state == "READY" or only not in ("", tpu):
            continue
        blank = dict.fromkeys(("step", "steps", "loss", "tokens_per_second", "goodput"))
        best = (record.get("watch") or {}).get("best_step")
        found.append(
            {
                "run": name,
                "attempt": record.get("attempt"),
                "state": "preempted" if state in DEAD else f"its TPU is {state.lower()}",
                **blank,
                "step": best or None,
                "heartbeat_age": None,
                "output_age": None,
                "wanted": "running",
                "tpu": tpu,
                "workers": [],
            }
        )
    return found


def node_states(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Give the state of each TPU by its name, and of those made together (``multislice_NAME``) the
    one that is not READY. ``facts`` are each host's variables."""
    found: dict[str, str] = {}
    for each in facts.values():
        state = str(each.get("tpu_state") or "")
        for name in run_places(each):
            if found.get(name, "READY") == "READY":
                found[name] = state
    return found


def one_run(
    name: str, parts: Sequence[Mapping[str, Any]], record: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """Give how one run stands; step, loss and speed are those of its first worker that tells."""
    lead = next((each for each in parts if each.get("step") is not None), parts[0])
    ages = [each["heartbeat_age"] for each in parts if is_number(each.get("heartbeat_age"))]
    outputs = [each["output_age"] for each in parts if is_number(each.get("output_age"))]
    state = run_state(parts, record)
    ends = [each["ended"] for each in parts if is_number(each.get("ended"))]
    told = next((each["progress"] for each in parts if each.get("progress")), None)
    return {
        "run": name,
        "attempt": max((each["attempt"] or 0 for each in parts), default=0) or None,
        "state": state,
        **{key: lead.get(key) for key in ("step", "steps", "loss", "tokens_per_second")},
        "goodput": goodput(told, record, max(ends) if state == "done" and ends else now),
        "heartbeat_age": max(ages, default=None),
        "output_age": None if ages else min(outputs, default=None),
        "wanted": record.get("wanted"),
        "tpu": record.get("tpu"),
        "workers": [each["worker"] for each in parts],
    }


def status_screen(
    rows: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    unread: str = "",
    notes: Sequence[str] = (),
) -> list[str]:
    """Write a line a run, then only the workers that differ from it, then those without a run.

    ``runs`` are status_runs' of the same rows; ``unread`` says why there are no records;
    ``notes`` are further lines, of which empty ones are left out.
    """
    rest: dict[tuple[str, str], list[str]] = {}
    told = {run["tpu"] for run in runs if not run["workers"]}
    for each in rows:
        if "run" not in each and each["worker"] not in told:
            key = (each["state"], str(each.get("reason", "")))
            rest.setdefault(key, []).append(each["worker"])
    cells = [list(HEAD)]
    below: list[str] = []
    for run in runs:
        cells.append(run_cells(run))
        mine = [each for each in rows if each.get("run") == run["run"]]
        below += differing(run["run"], run["state"], mine)
        below += errors(run["run"], mine)
    for (state, reason), workers in rest.items():
        cells.append(["-", "-", state, *["-"] * (len(HEAD) - 4), folded(workers)])
        if reason:
            below.append(f"{folded(workers)}: {reason}")
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    below += [f"what is wanted is not known: {unread}"] if unread else []
    return table + below + [note for note in notes if note]


def foreign_line(tpus: Mapping[str, str]) -> str:
    """Name the TPUs that do not belong to this fleet, on one line; empty if there are none.

    ``tpus`` holds the zone of each by its name.
    """
    if not tpus:
        return ""
    many = f"{len(tpus)} TPU{'' if len(tpus) == 1 else 's'}"
    return f"not of this fleet: {many}, {folded(sorted(tpus, key=natural))} (-e tpu=NAME shows one)"


def run_cells(run: Mapping[str, Any]) -> list[str]:
    """Give the cells of a run's line."""
    of = f"/{run['steps']}" if run["steps"] is not None else ""
    return [
        run["run"],
        text(run["attempt"]),
        run["state"],
        f"{run['step']}{of}" if run["step"] is not None else "-",
        number(run["loss"], "{:.3f}"),
        number(run["tokens_per_second"], "{:,.0f}"),
        number(run["goodput"], "{:.0%}"),
        last_sign(run),
        folded(run["workers"]) if run["workers"] else text(run["tpu"]),
    ]


def last_sign(run: Mapping[str, Any]) -> str:
    """Say when a run was heard of last: its heartbeat, or without one the last output."""
    if run["heartbeat_age"] is None and is_number(run.get("output_age")):
        return f"output {run['output_age']:.0f} s ago"
    return number(run["heartbeat_age"], "{:.0f} s ago")


def differing(name: str, state: str, parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the workers whose state or attempt is not the run's, those alike together."""
    attempt = max((each["attempt"] or 0 for each in parts), default=0)
    if state == "stopped by you" and len({each["state"] for each in parts}) == 1:
        return []
    found: dict[str, list[str]] = {}
    for each in parts:
        if each["state"] != state or (each["attempt"] or 0) != attempt:
            older = f", attempt {each['attempt']}" if (each["attempt"] or 0) != attempt else ""
            found.setdefault(f"{each['state']}{older}", []).append(each["worker"])
    return [f"{name}, {folded(workers)}: {what}" for what, workers in found.items()]


def errors(name: str, parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say why the workers of a run crashed, those alike together."""
    found: dict[str, list[str]] = {}
    for each in parts:
        if each.get("error"):
            found.setdefault(each["error"], []).append(each["worker"])
    return [f"{name}, {folded(workers)}: {error}" for error, workers in found.items()]


def finished_runs(
    answers: Mapping[str, Answer], records: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the runs, with their attempts, that are done but not yet recorded as done.

    Every process of the recorded attempt has ended with 0.
    """
    found = []
    for run, record in sorted(records.items()):
        if record.get("wanted") != "running":
            continue
        ended = [
            seen
            for answer in answers.values()
            for seen in answer.get("runs", [])
            if seen["run"] == run and seen["attempt"] == record["attempt"] and not seen["active"]
        ]
        codes = [str((seen["exit"] or {}).get("status", "")) for seen in ended]
        if len(codes) == record["workers"] and set(codes) == {str(DONE)}:
            found.append({"run": run, "attempt": record["attempt"]})
    return found


def log_lines(answer: Answer) -> list[str]:
    """Give the last lines of a worker's log, of the run that is active or ended last, or why there
    are none."""
    if "runs" not in answer:
        return [why(answer)]
    shown = latest(answer["runs"])
    return [line for seen in shown for line in seen["log"]] or ["no run has a log here"]


def folded_logs(answers: Mapping[str, Answer]) -> list[str]:
    """Put the workers' logs into one, lines that several say once with their names before them.

    A worker that has ended badly comes first; each worker's own order is kept.
    """
    merged: list[tuple[tuple[str, int], list[str]]] = []
    for host in sorted(answers, key=lambda name: (calm(answers[name]), natural(name))):
        seen: Counter[str] = Counter()
        keys = []
        for line in log_lines(answers[host]):
            seen[line] += 1
            keys.append((line, seen[line]))
        merge(merged, keys, host)
    return [f"{folded(sorted(hosts, key=natural))}: {line}" for (line, _), hosts in merged]


def merge(
    merged: list[tuple[tuple[str, int], list[str]]], keys: Sequence[tuple[str, int]], host: str
) -> None:
    """Add a host's lines: to those that are there where the order allows it; others before the next
    that is, or at the end."""
    at = 0
    for number, key in enumerate(keys):
        places = {known: index for index, (known, _) in enumerate(merged) if index >= at}
        if key in places:
            at = places[key]
            merged[at][1].append(host)
        else:
            ahead = (places[later] for later in keys[number + 1 :] if later in places)
            at = next(ahead, len(merged))
            merged.insert(at, (key, [host]))
        at += 1


def calm(answer: Answer) -> bool:
    """Tell whether nothing has gone wrong on a worker of itself."""
    states = [str(seen["state"]) for seen in latest(answer.get("runs", []))]
    return "runs" in answer and all(
        state in CALM or state.startswith(("ended as ", "waiting for ")) for state in states
    )


def text(value: Any) -> str:
    """Write a value, or a dash where there is none."""
    return "-" if value is None else str(value)


def number(value: Any, form: str) -> str:
    """Write a number in a form; what a foreign trainer wrote may be something else."""
    return form.format(value) if is_number(value) else text(value)


def is_number(value: Any) -> bool:
    """Tell whether a value is a number."""
    return isinstance(value, int | float)


def natural(name: str) -> list[Any]:
    """Order names with numbers as people do: w2 before w10."""
    parts = "".join(sign if sign.isdigit() else f"\0{sign}\0" for sign in name).split("\0")
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]


class FilterModule:
    """Ansible's way to find the filters."""

    def filters(self) -> dict[str, Any]:
        """Name them."""
        return {
            "log_lines": log_lines,
            "finished_runs": finished_runs,
            "folded_logs": folded_logs,
            "node_states": node_states,
            "status_rows": status_rows,
            "status_runs": status_runs,
            "status_screen": status_screen,
            "foreign_line": foreign_line,
        }
