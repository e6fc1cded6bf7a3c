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
class WaitResult:
    """The result of waiting for a run on one worker.

    ``process`` is None if the worker did not answer. ``outcome`` is a WaitOutcome, ``answer`` the
    result of the module ``run_wait``.
    """

    host: str
    process: ProcessStatus | None
    outcome: str
    answer: Answer

    @classmethod
    def of(cls, host: str, answer: Answer) -> WaitResult:
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
        """The last attempt's lines in the log that the worker returned, without empty lines."""
        lines = last_attempt((self.answer.get("info") or {}).get("log", []))
        return [line for line in lines if line.strip()]

    def problem(self) -> str:
        """Return one line with the worker, what failed there and the error message."""
        if self.process is None:
            return f"{self.host}: {answer_error(self.answer)}"
        late = ""
        if self.process.is_active:
            late = ", no first step in time (a launch with -e wait=started does not wait for it)"
        message = self.process.error or error_line(self.log)
        text = f"{process_text(self.process)}{late}"
        return ": ".join(filter(None, (self.host, text, message)))


def start_answers(
    hosts: Sequence[str],
    first_starts: Mapping[str, Answer],
    pushed: Mapping[str, Answer],
    second_starts: Mapping[str, Answer],
) -> dict[str, Answer]:
    """Return, for each host of a run, the answer that says whether its process has started.

    This is the answer to the last task that ran on the host: the push if it failed, else the second
    start, else the first start. If there was only a first start and it started nothing, the answer
    is ``{}``.

    Args:
        hosts: the hosts of the run.
        first_starts: the answer of each host to the first task that starts the process. It starts
            nothing on a host without the release.
        pushed: the answer of each host to the task that pushes the release.
        second_starts: the answer of each host to the task that starts the process after the push.
    """
    start_results = {}
    for host in hosts:
        push, second = pushed.get(host) or {}, second_starts.get(host) or {}
        if push.get("unreachable") or push.get("failed"):
            start_results[host] = {key: push[key] for key in ("msg", "unreachable") if key in push}
        elif "info" in second or "msg" in second:
            start_results[host] = second
        else:
            first = first_starts.get(host) or {}
            start_results[host] = first if first.get("started") else {}
    return start_results


def wait_outcome(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Return the outcome of one run after waiting for it on all its workers.

    Returns ``problems`` (lines), ``launch_failed`` (whether the run failed before its first step)
    and ``stop`` (whether it must be stopped on all workers, because a process failed or there was
    no first step). After the first step, a lost connection to a worker is no reason to stop.
    """
    results = [WaitResult.of(host, answer) for host, answer in answers.items()]
    problems = [result.problem() for result in failed_first(results)]
    has_begun = any(result.process and (result.process.step or 0) >= 1 for result in results)
    has_ended_badly = any(result.process and result.process.has_ended_badly for result in results)
    return {
        "problems": problems,
        "launch_failed": bool(problems) and not has_begun,
        "stop": bool(problems) and (has_ended_badly or not has_begun),
    }


def failed_first(results: Sequence[WaitResult]) -> list[WaitResult]:
    """Return the failed workers, earliest failure first, because it often causes the later ones."""

    def ended_at(result: WaitResult) -> float:
        return (result.process.ended_at if result.process else 0.0) or float("inf")

    return sorted((result for result in results if result.has_failed), key=ended_at)


def bad_logs(answers: Mapping[str, Answer]) -> list[str]:
    """Return the last log lines of the workers that failed, each after its worker's name."""
    results = [WaitResult.of(host, answer) for host, answer in answers.items()]
    return [f"{result.host}: {line}" for result in failed_first(results) for line in result.log]


def attempt_text(
    outcome: Mapping[str, Any], run: str, ended: Mapping[str, Answer], tpu: str = ""
) -> str:
    """Return one line that says what failed, whether the run continues, and what to do.

    ``outcome`` is the result of wait_outcome. ``ended`` maps each worker to its answer to the task
    that stops the run. ``tpu`` is the value of ``-e tpu=``, empty if it is not set.
    """
    reason = "; ".join(outcome["problems"])
    if not outcome["stop"]:
        return (
            f"run {run} continues: {reason}. See its status: ansible-playbook playbooks/status.yml"
        )
    failed = failures(ended)
    if failed:
        return (
            f"run {run} failed: {reason}. It was not stopped on {'; '.join(failed)}. Stop it: "
            f"ansible-playbook playbooks/kill.yml -e run={run}"
        )
    return (
        f"run {run} failed and was stopped on all workers: {reason}. Fix it and launch the run "
        f"again; see its log: ansible-playbook playbooks/logs.yml -e run={run}"
        + (f" -e tpu={tpu}" if tpu else "")
    )


def failures(answers: Mapping[str, Answer], needed: str = "info") -> list[str]:
    """Return a line for each worker whose answer has no key ``needed``, with the worker's error."""
    return [
        f"{host}: {answer_error(answer)}"
        for host, answer in answers.items()
        if needed not in answer
    ]


def launch_verdict(
    answers: Mapping[str, Answer], processes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Decide for each run of a launch whether to start it.

    ``answers`` are the results of the module ``run`` with ``state: launched`` or ``checked``, by
    host. ``processes`` maps each host to its process, which has the keys ``run`` and ``tpu``.

    Keys of the result:

    - ``problems``: lines by run, for runs that must not start.
    - ``launch``: runs to start.
    - ``again``: runs of ``launch`` that some worker has not started yet.
    - ``push``: runs of ``launch`` whose release is missing on some worker.
    - ``running``, ``done``: runs that need no launch.
    - ``notes``: a line for each running or done run.
    """
    problems: dict[str, list[tuple[str, str]]] = {}
    statuses: dict[str, set[str]] = {}
    push = set()
    for host, process in processes.items():
        answer, run_problems = answers.get(host) or {}, problems.setdefault(process["run"], [])
        if "status" not in answer:
            run_problems.append((host, answer_error(answer, process["tpu"])))
            continue
        run_problems += [(host, line) for line in answer["blockers"]]
        status = "started" if answer["started"] else answer["status"]
        statuses.setdefault(process["run"], set()).add(status)
        if answer["release_is_missing"]:
            push.add(process["run"])
    refused = {run for run, lines in problems.items() if lines}
    common_status = {
        run: next(iter(run_statuses))
        for run, run_statuses in statuses.items()
        if len(run_statuses) == 1 and run not in refused
    }
    running = sorted(run for run, status in common_status.items() if status == "running")
    done = sorted(run for run, status in common_status.items() if status == "done")
    launch = set(statuses) - refused - set(running) - set(done)
    return {
        "problems": {run: grouped_lines(problems[run]) for run in sorted(refused)},
        "launch": sorted(launch),
        "again": sorted(run for run in launch if common_status.get(run) != "started"),
        "push": sorted(launch & push),
        "running": running,
        "done": done,
        "notes": [f"{run} is already running" for run in running]
        + [f"{run} is already done. Start a new run: -e run=NAME" for run in done],
    }


def one_host_per_worker(
    processes: Mapping[str, Mapping[str, Any]], runs: Collection[str]
) -> list[str]:
    """Return one host for each worker of the runs in ``runs``.

    With ``per_chip``, a worker has one host for each chip; the first of these is returned.
    ``processes`` maps each host to its process, which has the keys ``run`` and ``worker``.
    """
    first_hosts: dict[str, str] = {}
    for host, process in sorted(processes.items()):
        if process["run"] in runs:
            first_hosts.setdefault(process.get("worker") or host, host)
    return sorted(first_hosts.values())


def grouped_lines(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return each line once, after the names of all its hosts: ``pod-w[0-3]: no space``.

    ``lines`` are pairs of a host and its line.
    """
    hosts: dict[str, list[str]] = {}
    for host, line in lines:
        hosts.setdefault(line, []).append(host)
    return [f"{folded(names)}: {line}" for line, names in hosts.items()]


def hosts_to_stop(
    answers: Mapping[str, Answer],
    processes: Mapping[str, Mapping[str, Any]],
    refused: Collection[str],
    again: Collection[str],
) -> list[str]:
    """Return the hosts on which an attempt must be stopped.

    Args:
        answers: the results of the module ``run`` with ``state: launched`` or ``checked``, by host.
        processes: the process of each host, with its ``run``.
        refused: the runs that must not start; they are stopped on the hosts that started them.
        again: the runs that some host must still start. Their earlier attempt is stopped on each
            host where it is still active.
    """
    to_stop = []
    for host, process in processes.items():
        answer = answers.get(host) or {}
        is_started = bool(answer.get("started"))
        is_older = bool((answer.get("info") or {}).get("active")) and not is_started
        if (process["run"] in refused and is_started) or (process["run"] in again and is_older):
            to_stop.append(host)
    return to_stop
