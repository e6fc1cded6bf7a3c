"""Filters for status.yml and logs.yml: many workers' answers as one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..plugin_utils.folded_names import folded
from .runs import Answer, why

HUNG_SECONDS = 600
"""As the watch has it; before the first step a compilation may take longer."""

CALM = ("done", "interrupted, saved", "idle", "starting", "training", "stopping")


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


def latest(runs: Sequence[Answer]) -> list[Answer]:
    """Pick the active runs, or else the one that ended last."""
    active = [seen for seen in runs if seen["active"]]
    ended = sorted(runs, key=lambda seen: (seen["exit"] or {}).get("time") or 0)
    return active or ended[-1:]


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


def status_screen(
    rows: Sequence[Mapping[str, Any]], records: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Write a line a run, then only the workers that differ from it, then those without a run.

    ``records`` holds each run's record, as far as there are any.
    """
    runs: dict[str, list[Mapping[str, Any]]] = {}
    rest: dict[tuple[str, str], list[str]] = {}
    for each in rows:
        if "run" in each:
            runs.setdefault(each["run"], []).append(each)
        else:
            key = (each["state"], str(each.get("reason", "")))
            rest.setdefault(key, []).append(each["worker"])
    cells = [["RUN", "ATTEMPT", "STATE", "STEP", "LOSS", "TOKENS/S", "HEARTBEAT", "WORKERS"]]
    below: list[str] = []
    for name, parts in runs.items():
        state = run_state(parts, records.get(name) or {})
        cells.append(run_cells(name, state, parts))
        below += differing(name, state, parts)
    for (state, reason), workers in rest.items():
        cells.append(["-", "-", state, "-", "-", "-", "-", folded(workers)])
        if reason:
            below.append(f"{folded(workers)}: {reason}")
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    return table + below


def run_cells(name: str, state: str, parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Give the cells of a run's line; step, loss and speed are those of its first worker that
    tells."""
    lead = next((each for each in parts if each.get("step") is not None), parts[0])
    of = f"/{lead['steps']}" if lead.get("steps") is not None else ""
    ages = [each["heartbeat_age"] for each in parts if number(each.get("heartbeat_age"), "") == ""]
    return [
        name,
        text(max((each["attempt"] or 0 for each in parts), default=0) or None),
        state,
        f"{lead['step']}{of}" if lead.get("step") is not None else "-",
        number(lead.get("loss"), "{:.3f}"),
        number(lead.get("tokens_per_second"), "{:,.0f}"),
        number(max(ages, default=None), "{:.0f} s ago"),
        folded(each["worker"] for each in parts),
    ]


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
    return form.format(value) if isinstance(value, int | float) else text(value)


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
            "folded_logs": folded_logs,
            "status_rows": status_rows,
            "status_screen": status_screen,
        }
