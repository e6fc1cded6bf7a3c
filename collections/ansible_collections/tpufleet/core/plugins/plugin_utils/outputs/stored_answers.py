"""Status of a run's last attempt from its stored output, in the format of the module run_info."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...module_utils.worker.run_files import read_heartbeat

if TYPE_CHECKING:
    from .summary import ProcessOutput, RunOutput

Answer = dict[str, Any]


def stored_answers(
    run: str, found: RunOutput, logs: Mapping[int, Sequence[str]]
) -> dict[str, Answer]:
    """Return a result like that of the module run_info for each worker of the last attempt.

    Args:
        run: the name of the run.
        found: the summary of its stored output.
        logs: the last lines of each process's log, by process id.
    """
    if not found.attempts:
        return {}
    attempt = found.attempts[-1]
    answers: dict[str, Answer] = {}
    for each in attempt.processes:
        answer = _answer(run, attempt.number, each) | {"log": list(logs.get(each.process_id, ()))}
        if each is attempt.processes[0]:
            answer |= {"heartbeat": _heartbeat(found), "progress": progress_of(found)}
        if f"{each.name}, attempt {attempt.number}" == found.log_from:
            answer |= {"error": found.error}
        answers.setdefault(each.name, {"runs": []})["runs"].append(answer)
    return answers


def progress_of(found: RunOutput) -> dict[str, float] | None:
    """Return the first and last step, and the seconds of steps that counted, for goodput.

    For the format see module_utils/worker/run_progress.py. Returns None for fewer than two steps.
    """
    steps = [each for each in found.attempts if each.first_step is not None]
    if not steps or not found.last:
        return None
    first, last = steps[0].first_step or 0, int(found.last["step"] or 0)
    counted = sum(each.kept for each in steps)
    return {"first": first, "last": last, "counted": counted} if last > first else None


def _heartbeat(found: RunOutput) -> Answer | None:
    beat = read_heartbeat(found.last) if found.last else None
    return beat._asdict() if beat else None


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
