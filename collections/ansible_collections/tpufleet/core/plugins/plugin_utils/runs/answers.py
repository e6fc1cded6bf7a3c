"""Evaluation of a task's results from all workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .launch_outcome import grouped_lines
from .observation import parse_process
from .status import stopped_text

Answer = Mapping[str, Any]


def by_host(
    hostvars: Mapping[str, Mapping[str, Any]], hosts: Sequence[str], name: str
) -> dict[str, Any]:
    """Return each host's value of the registered variable ``name``; ``{}`` for a host without it.

    ``hostvars`` maps each host to its variables.
    """
    return {host: hostvars[host].get(name) or {} for host in hosts}


def active_runs(answers: Mapping[str, Answer]) -> list[str]:
    """Return the names of the runs that are active on any worker.

    ``answers`` maps each host to its result of the module run_info.
    """
    return sorted(
        {
            run["run"]
            for answer in answers.values()
            for run in answer.get("runs", [])
            if run["active"]
        }
    )


def has_run(answers: Mapping[str, Answer], run: str) -> bool:
    """Return whether any worker has an attempt of a run.

    ``answers`` maps each host to its result of the module run_info.
    """
    return any(
        report["run"] == run and report["attempt"]
        for answer in answers.values()
        for report in answer.get("runs", [])
    )


def stopped_lines(answers: Mapping[str, Answer]) -> list[str]:
    """Return lines that say how processes of a run ended; empty if no worker has the run.

    Workers whose processes ended in the same way share a line. ``answers`` maps each host to its
    result of the module run with ``state: stopped``.
    """
    infos = [(host, answer.get("info")) for host, answer in answers.items()]
    return grouped_lines(
        [
            (host, stopped_text(parse_process(host, info)))
            for host, info in infos
            if info and info["attempt"] is not None
        ]
    )


def stray_lines(answers: Mapping[str, Answer]) -> list[str]:
    """Return a line for each process that the module ``stray`` has found.

    ``answers`` maps each host to its result of this module.
    """
    return [
        f"{host}: pid {stray['pid']} of {stray['user']}, since {stray['since']}, "
        f"holds {stray['device']}: {stray['command']}"
        for host, answer in answers.items()
        for stray in answer.get("strays", [])
    ]
