"""Status of a run's last attempt from its stored output, in the format of the module run_info."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...module_utils.worker.run_files import read_heartbeat

if TYPE_CHECKING:
    from .summary import ProcessOutput, RunOutput

Answer = dict[str, Any]


def stored_answers(
    run: str, summary: RunOutput, logs: Mapping[int, Sequence[str]]
) -> dict[str, Answer]:
    """Return a result like that of the module run_info for each worker of the last attempt.

    ``logs`` maps each process id to the last lines of the process's log.
    """
    if not summary.attempts:
        return {}
    attempt = summary.attempts[-1]
    answers: dict[str, Answer] = {}
    for process in attempt.processes:
        answer = _answer(run, attempt.number, process) | {
            "log": list(logs.get(process.process_id, ()))
        }
        if process is attempt.processes[0]:
            answer |= {"heartbeat": _heartbeat(summary), "progress": progress_of(summary)}
        if (process.name, attempt.number) == (summary.log_worker, summary.log_attempt):
            answer |= {"error": summary.error}
        answers.setdefault(process.name, {"runs": []})["runs"].append(answer)
    return answers


def progress_of(summary: RunOutput) -> dict[str, float] | None:
    """Return the progress from which goodput is computed; None for fewer than two steps.

    ``first`` and ``last`` are step numbers, ``counted`` is the time in seconds of the steps that no
    later attempt repeated, as in module_utils/worker/run_progress.py.
    """
    attempts = [attempt for attempt in summary.attempts if attempt.first_step is not None]
    if not attempts or not summary.last:
        return None
    first, last = attempts[0].first_step or 0, int(summary.last["step"] or 0)
    counted_s = sum(attempt.kept for attempt in attempts)
    return {"first": first, "last": last, "counted": counted_s} if last > first else None


def _heartbeat(summary: RunOutput) -> Answer | None:
    heartbeat = read_heartbeat(summary.last) if summary.last else None
    return heartbeat._asdict() if heartbeat else None


def _answer(run: str, attempt: int, process: ProcessOutput) -> Answer:
    state = process.state
    return {
        "run": run,
        "attempt": attempt,
        "active": False,
        "state": state.state.value,
        "reason_code": state.reason_code.value,
        "exit_code": state.exit_code,
        "signal": state.signal,
        "ended_at": process.end.time if process.end else None,
        "launched": {"attempt": attempt, "process_id": process.process_id},
        "heartbeat": None,
        "heartbeat_age": None,
        "error": "",
    }
