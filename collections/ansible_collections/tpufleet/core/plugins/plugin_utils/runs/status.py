"""Sentences about runs, written from structured values. No other file writes them.

Nothing compares, splits or searches these texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...module_utils.worker.run_state import ReasonCode, RunState
from .judge import RunStatus, WorkerStatus
from .process import Process

_STATES = {
    RunState.STARTING: "starting",
    RunState.RUNNING: "running",
    RunState.TRAINING: "training",
    RunState.STOPPING: "stopping",
    RunState.DONE: "done",
    RunState.INTERRUPTED: "interrupted",
    RunState.FAILED: "failed",
    RunState.LOST: "lost",
    RunState.HUNG: "hung",
    RunState.UNREACHABLE: "unreachable",
    RunState.STOPPED: "stopped by you",
    RunState.PREEMPTED: "preempted",
    RunState.UNKNOWN: "unknown",
}
_REASONS = {
    ReasonCode.SAVED: "interrupted, saved",
    ReasonCode.NOT_SAVED: "interrupted, not saved",
    ReasonCode.RENDEZVOUS_FAILED: "rendezvous failed",
    ReasonCode.CHECKPOINTS_NOT_SHARED: "checkpoints not shared",
    ReasonCode.BAD_CONFIG: "bad config",
    ReasonCode.LOSS_NOT_A_NUMBER: "loss is not a number",
    ReasonCode.NO_STEP: "crashed (exit 70: no step for too long)",
    ReasonCode.COMMAND_NOT_EXECUTABLE: "crashed (exit 126: the command can't be executed)",
    ReasonCode.COMMAND_NOT_FOUND: "crashed (exit 127: the command was not found)",
    ReasonCode.OUT_OF_MEMORY: "out of memory",
    ReasonCode.KILLED: "killed",
    ReasonCode.START_FAILED: "failed to start",
}


def process_text(process: Process) -> str:
    """Return what a process is doing, or how it ended, without its error message."""
    match process.state, process.reason_code:
        case RunState.WAITING, _:
            return f"waiting for {', '.join(process.waiting_for) or 'the other workers'}"
        case RunState.HUNG, _:
            return f"hung, no heartbeat for {process.heartbeat_age or 0:.0f} s"
        case RunState.TRAINING, _:
            has_phase = process.phase not in ("", "running")
            return process.phase if has_phase else _STATES[RunState.TRAINING]
        case _, ReasonCode.PEER_ENDED:
            return f"ended because {peer_text(process)}"
        case _, ReasonCode.SIGNAL:
            return f"crashed (signal {process.signal})"
        case _, ReasonCode.EXIT_CODE:
            return f"crashed (exit {process.exit_code})"
        case state, reason:
            return _REASONS.get(reason) or _STATES[state]


def peer_text(process: Process) -> str:
    """Return how the worker ended whose end ended this process."""
    if not process.peer:
        return "another worker ended"
    if process.peer_exit_code is None:
        return f"{process.peer} was lost"
    return f"{process.peer} ended with exit code {process.peer_exit_code}"


def process_line(process: Process) -> str:
    """Return what a process is doing, with its worker and its error message."""
    return ": ".join(filter(None, (process.host, process_text(process), process.error)))


def progress_text(process: Process) -> str:
    """Return how far a process is: its step and loss, or when it wrote to its log last."""
    text = process_text(process)
    if process.step is None:
        age = None if process.has_heartbeat else process.output_age
        return text if age is None else f"{text}, last output {age:.0f} s ago"
    of = f" of {process.steps}" if process.steps is not None else ""
    loss = f", loss {process.loss:.3f}" if process.loss is not None else ""
    return f"{text}: step {process.step}{of}{loss}"


def stopped_text(process: Process) -> str:
    """Return how a process ended that was stopped, with its last step."""
    at = f" at step {process.step}" if process.step is not None else ""
    return f"{process_text(process)}{at}"


def run_text(run: RunStatus) -> str:
    """Return what a run is doing as a whole."""
    if run.state is RunState.WAITING_FOR_TPU:
        return f"its TPU is {run.tpu_state.lower()}"
    if run.decided_by and run.decided_by.state is run.state:
        return process_text(run.decided_by)
    return _STATES[run.state]


def worker_text(worker: WorkerStatus) -> str:
    """Return what a worker is doing."""
    if worker.process:
        return process_text(worker.process)
    if worker.tpu_state:
        return worker.tpu_state.lower()
    if worker.answer is not None:
        return "unreachable" if worker.answer.get("unreachable") else "unknown"
    return "idle"


def last_sign_text(run: RunStatus) -> str:
    """Return when a run was heard of last: by its heartbeat, else by its output."""
    if run.heartbeat_age is not None:
        return f"{run.heartbeat_age:.0f} s ago"
    return "-" if run.output_age is None else f"output {run.output_age:.0f} s ago"


def answer_error(answer: Mapping[str, Any] | None) -> str:
    """Return on one line why a worker did not answer, from Ansible's message."""
    answer = answer or {}
    text = " ".join(str(answer.get("msg") or "no answer").split()).removeprefix("Task failed: ")
    if answer.get("unreachable"):
        return f"can't be reached: {text[max(text.rfind('ssh: '), 0) :]}"
    return text
