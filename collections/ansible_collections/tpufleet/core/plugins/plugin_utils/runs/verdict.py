"""Which runs of a play can start, decided from the answers of all their workers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..view.folded_names import folded
from .status import answer_error

Answer = Mapping[str, Any]


def launch_verdict(
    answers: Mapping[str, Answer], processes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Decide from each worker's answer to ``state: launched`` or ``checked`` what is to be done.

    Each run stands for itself. Returns ``problems`` (by run its lines; a run that has one may not
    start), ``launch`` (runs that start), of these ``again`` (not all workers have started yet) and
    ``push`` (one is missing the release), ``running`` and ``done`` (names of
    runs), ``notes`` (lines on the last two).
    """
    problems: dict[str, list[tuple[str, str]]] = {}
    statuses: dict[str, set[str]] = {}
    push = set()
    for host, process in processes.items():
        answer, mine = answers.get(host) or {}, problems.setdefault(process["run"], [])
        if "status" not in answer:
            mine.append((host, answer_error(answer) + doctor_of(answer, process["tpu"])))
            continue
        mine += [(host, line) for line in answer["blockers"]]
        status = "started" if answer["started"] else answer["status"]
        statuses.setdefault(process["run"], set()).add(status)
        if answer["release_is_missing"]:
            push.add(process["run"])
    refused = {run for run, lines in problems.items() if lines}
    whole = {
        run: next(iter(found))
        for run, found in statuses.items()
        if len(found) == 1 and run not in refused
    }
    running = sorted(run for run, found in whole.items() if found == "running")
    done = sorted(run for run, found in whole.items() if found == "done")
    launch = set(statuses) - refused - set(running) - set(done)
    return {
        "problems": {run: said_once(problems[run]) for run in sorted(refused)},
        "launch": sorted(launch),
        "again": sorted(run for run in launch if whole.get(run) != "started"),
        "push": sorted(launch & push),
        "running": running,
        "done": done,
        "notes": [f"{run} runs already" for run in running]
        + [f"{run} is done already: another -e run=NAME makes a new one" for run in done],
    }


def doctor_of(answer: Answer, tpu: str) -> str:
    """Return the command that examines an unreachable worker; empty for another failure."""
    doctor = f": ansible-playbook playbooks/doctor.yml -e tpu={tpu}"
    return doctor if answer.get("unreachable") else ""


def one_a_worker(processes: Mapping[str, Mapping[str, Any]], runs: Collection[str]) -> list[str]:
    """Return the hosts of runs; of several chips of one worker the first."""
    found: dict[str, str] = {}
    for host, process in sorted(processes.items()):
        if process["run"] in runs:
            found.setdefault(process.get("worker") or host, host)
    return sorted(found.values())


def said_once(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return each line once, after all its hosts: ``pod-w[0-3]: no space``."""
    hosts: dict[str, list[str]] = {}
    for host, line in lines:
        hosts.setdefault(line, []).append(host)
    return [f"{folded(names)}: {line}" for line, names in hosts.items()]


def leftovers(
    answers: Mapping[str, Answer],
    processes: Mapping[str, Mapping[str, Any]],
    refused: Collection[str],
    again: Collection[str],
) -> list[str]:
    """Return the hosts on which something has to be stopped.

    Of a refused run these are the hosts that have started it, of one that is started ``again``
    those on which an earlier attempt is active.
    """
    found = []
    for host, process in processes.items():
        answer = answers.get(host) or {}
        is_started = bool(answer.get("started"))
        is_older = bool((answer.get("info") or {}).get("active")) and not is_started
        if (process["run"] in refused and is_started) or (process["run"] in again and is_older):
            found.append(host)
    return found
