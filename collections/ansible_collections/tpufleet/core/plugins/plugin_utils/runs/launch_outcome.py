"""Decisions on whether a launch can start and has succeeded, from its workers' answers.

If one worker fails, the run fails. An answer is the result of module ``run`` (``status``,
``blockers``, ``info``) or ``run_wait`` (``info``, ``outcome``) on one worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...module_utils.worker.error_line import error_line, last_attempt
from ..view.folded_names import folded
from .observation import ProcessStatus, parse_process
from .status import answer_error, process_text

Answer = Mapping[str, Any]


class WaitOutcome(StrEnum):
    """How waiting for a run on one worker ended."""

    SETTLED = "settled"
    """The run has its first step, or has ended."""
    LEFT = "left"
    """Waiting stopped early because another worker failed."""
    TIMED_OUT = "timed_out"
    CONTINUES = "continues"
    """The time limit for waiting for the end of the run has passed, and the run continues."""


@dataclass(frozen=True)
class Waited:
    """The result of waiting for a run on one worker.

    ``process`` is None if the worker did not answer. ``outcome`` is a WaitOutcome, ``answer`` the
    result of the module ``run_wait``.
    """

    host: str
    process: ProcessStatus | None
    outcome: str
    answer: Answer

    @classmethod
    def of(cls, host: str, answer: Answer) -> Waited:
        """Parse ``answer``, the result of the module ``run_wait`` on the host."""
        info = answer.get("info")
        process = parse_process(host, info) if info else None
        return cls(host, process, str(answer.get("outcome", "")), answer)

    @property
    def has_failed(self) -> bool:
        """Whether the process failed, did not start in time or could not be observed."""
        if self.process is None:
            return True
        is_late = self.process.is_active and self.outcome == WaitOutcome.TIMED_OUT
        return is_late or self.process.has_ended_badly

    @property
    def log(self) -> list[str]:
        """The non-empty lines of the last attempt among the log lines that the worker returned."""
        lines = last_attempt((self.answer.get("info") or {}).get("log", []))
        return [line for line in lines if line.strip()]

    def problem(self) -> str:
        """Return one line with the worker, what failed there and the error message."""
        if self.process is None:
            return f"{self.host}: {answer_error(self.answer)}"
        late = ", not ready in time" if self.process.is_active else ""
        message = self.process.error or error_line(self.log)
        text = f"{process_text(self.process)}{late}"
        return ": ".join(filter(None, (self.host, text, message)))


def start_answers(
    hosts: Sequence[str],
    first_starts: Mapping[str, Answer],
    pushed: Mapping[str, Answer],
    second_starts: Mapping[str, Answer],
) -> dict[str, Answer]:
    """Return, for each host of a run, the answer that decides whether its process has started.

    This is the answer to the push if it failed, else to the second start, else to the first start
    if it succeeded, else ``{}``.

    Args:
        hosts: the hosts of the run.
        first_starts: the answer of each host to the first task that starts its process. A host
            without the release cannot start it.
        pushed: the answer of each host to the task that pushes the release.
        second_starts: the answer of each host to the task that starts it after the push.
    """
    found = {}
    for host in hosts:
        push, second = pushed.get(host) or {}, second_starts.get(host) or {}
        if push.get("unreachable") or push.get("failed"):
            found[host] = {key: push[key] for key in ("msg", "unreachable") if key in push}
        elif "info" in second or "msg" in second:
            found[host] = second
        else:
            first = first_starts.get(host) or {}
            found[host] = first if first.get("started") else {}
    return found


def wait_outcome(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Return the outcome of one run after waiting for it on all its workers.

    Returns ``problems`` (lines), ``launch_failed`` (whether the run failed before its first step)
    and ``stop`` (whether it must be stopped on all workers, because a process failed or there was
    no first step). After the first step, a lost connection to a worker is no reason to stop.
    """
    waited = [Waited.of(host, answer) for host, answer in answers.items()]
    problems = [each.problem() for each in failed_first(waited)]
    began = any(each.process and (each.process.step or 0) >= 1 for each in waited)
    over = any(each.process and each.process.has_ended_badly for each in waited)
    return {
        "problems": problems,
        "launch_failed": bool(problems) and not began,
        "stop": bool(problems) and (over or not began),
    }


def failed_first(waited: Sequence[Waited]) -> list[Waited]:
    """Return the failed workers, the earliest failure first: it often causes the others."""

    def ended_at(each: Waited) -> float:
        return (each.process.ended_at if each.process else 0.0) or float("inf")

    return sorted((each for each in waited if each.has_failed), key=ended_at)


def bad_logs(answers: Mapping[str, Answer]) -> list[str]:
    """Return the last log lines of the workers that failed, each after its worker's name."""
    waited = [Waited.of(host, answer) for host, answer in answers.items()]
    return [f"{each.host}: {line}" for each in failed_first(waited) for line in each.log]


def attempt_text(outcome: Mapping[str, Any], run: str, ended: Mapping[str, Answer]) -> str:
    """Return one line that says why an attempt failed and what to do.

    ``outcome`` is the result of wait_outcome. ``ended`` has the answer of each worker to the task
    that stops the run.
    """
    what = "; ".join(outcome["problems"])
    if not outcome["stop"]:
        return f"run {run} continues: {what}. See its status: ansible-playbook playbooks/status.yml"
    left = failures(ended)
    if left:
        return (
            f"run {run} failed: {what}. It was not stopped on {'; '.join(left)}. Stop it: "
            f"ansible-playbook playbooks/kill.yml -e run={run}"
        )
    return (
        f"run {run} failed and was stopped on all workers: {what}. Fix it and launch the run "
        f"again; see its log: ansible-playbook playbooks/logs.yml -e run={run}"
    )


def failures(answers: Mapping[str, Answer], needed: str = "info") -> list[str]:
    """Return a line with the error of each worker whose answer does not have the key ``needed``."""
    return [
        f"{host}: {answer_error(answer)}"
        for host, answer in answers.items()
        if needed not in (answer or {})
    ]


def launch_verdict(
    answers: Mapping[str, Answer], processes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Decide for each run of a launch whether to start it.

    ``answers`` are the results of the module ``run`` with ``state: launched`` or ``checked``, by
    host. ``processes`` has the process of each host, with its ``run`` and ``tpu``.

    Returns ``problems`` (lines by run; these runs must not start), ``launch`` (runs to start),
    ``again`` (runs of ``launch`` that some worker has not started yet), ``push`` (runs of
    ``launch`` whose release is missing on some worker), ``running`` and ``done`` (runs that need no
    launch), and ``notes`` (a line for each running or done run).
    """
    problems: dict[str, list[tuple[str, str]]] = {}
    statuses: dict[str, set[str]] = {}
    push = set()
    for host, process in processes.items():
        answer, mine = answers.get(host) or {}, problems.setdefault(process["run"], [])
        if "status" not in answer:
            mine.append((host, answer_error(answer, process["tpu"])))
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
        "notes": [f"{run} is already running" for run in running]
        + [f"{run} is already done. Start a new run: -e run=NAME" for run in done],
    }


def one_a_worker(processes: Mapping[str, Mapping[str, Any]], runs: Collection[str]) -> list[str]:
    """Return one host for each worker of the runs in ``runs``.

    With ``per_chip``, a worker has one host for each chip; the first of these is returned.
    ``processes`` has the process of each host, with its ``run`` and ``worker``.
    """
    found: dict[str, str] = {}
    for host, process in sorted(processes.items()):
        if process["run"] in runs:
            found.setdefault(process.get("worker") or host, host)
    return sorted(found.values())


def said_once(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return each line once, after the names of all its hosts: ``pod-w[0-3]: no space``.

    ``lines`` are pairs of a host and its line.
    """
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
    """Return the hosts on which an attempt must be stopped.

    Args:
        answers: the results of the module ``run`` with ``state: launched`` or ``checked``, by host.
        processes: the process of each host, with its ``run``.
        refused: the runs that must not start; they are stopped where they have started.
        again: the runs that will start again; an earlier attempt is stopped where it is active.
    """
    found = []
    for host, process in processes.items():
        answer = answers.get(host) or {}
        is_started = bool(answer.get("started"))
        is_older = bool((answer.get("info") or {}).get("active")) and not is_started
        if (process["run"] in refused and is_started) or (process["run"] in again and is_older):
            found.append(host)
    return found
