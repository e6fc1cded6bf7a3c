"""Evaluation of all workers' answers to one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .launch_outcome import said_once, stopped_processes

Answer = Mapping[str, Any]


def by_host(
    variables: Mapping[str, Mapping[str, Any]], hosts: Sequence[str], name: str
) -> dict[str, Any]:
    """Return what a task registered as ``name`` on each host; empty if the task did not run."""
    return {host: variables[host].get(name) or {} for host in hosts}


def active_runs(answers: Mapping[str, Answer]) -> list[str]:
    """Return the names of the runs that are active on any worker."""
    return sorted(
        {
            run["run"]
            for answer in answers.values()
            for run in (answer or {}).get("runs", [])
            if run["active"]
        }
    )


def has_run(answers: Mapping[str, Answer], run: str) -> bool:
    """Return whether a run was launched on any worker that answered."""
    return any(
        seen["run"] == run and seen["attempt"]
        for answer in answers.values()
        for seen in (answer or {}).get("runs", [])
    )


def stopped_lines(answers: Mapping[str, Answer]) -> list[str]:
    """Describe how each process of a run ended; workers with the same description share a line."""
    return said_once(stopped_processes(answers)) or ["no worker has this run"]
