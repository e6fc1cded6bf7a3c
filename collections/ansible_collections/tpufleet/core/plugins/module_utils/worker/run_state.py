"""What a run is doing on one worker, and why: the codes and numbers that workers report.

The controller writes sentences from them (plugin_utils/runs/status.py). Python 3.9, standard
library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from .contract import (
    BAD_CONFIG,
    DONE,
    NOT_A_NUMBER,
    NOT_SHARED,
    PEER_ENDED,
    RENDEZVOUS_FAILED,
    SAVED,
)
from .run_files import Exit, Heartbeat, Rendezvous

ACTIVE_UNIT = ("active", "activating", "reloading", "deactivating")
"""systemd's ActiveState of a unit that has processes."""


class RunState(str, Enum):  # noqa: UP042 - Python 3.9
    """What a run is doing. Workers report the first nine; the controller judges the others."""

    STARTING = "starting"
    WAITING = "waiting"
    """At the rendezvous, for other workers."""
    RUNNING = "running"
    """The trainer's process is there; it writes no heartbeat."""
    TRAINING = "training"
    STOPPING = "stopping"
    DONE = "done"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    LOST = "lost"
    """Not running, and nothing recorded how it ended."""

    HUNG = "hung"
    UNREACHABLE = "unreachable"
    STOPPED = "stopped"
    GIVEN_UP = "given_up"
    PREEMPTED = "preempted"
    PREEMPTION_SUSPECTED = "preemption_suspected"
    REPLACED = "replaced"
    MAINTENANCE = "maintenance"
    ENDING = "ending"
    PARTLY_ENDED = "partly_ended"
    WAITING_FOR_TPU = "waiting_for_tpu"
    WAITING_FOR_WORKERS = "waiting_for_workers"
    WAITING_FOR_RELEASE = "waiting_for_release"
    NOT_WATCHED = "not_watched"
    NAME_TAKEN = "name_taken"
    UNKNOWN = "unknown"


ACTIVE_STATES = frozenset(
    {
        RunState.STARTING,
        RunState.WAITING,
        RunState.RUNNING,
        RunState.TRAINING,
        RunState.STOPPING,
        RunState.HUNG,
    }
)
"""States in which a run has processes on the worker."""


class ReasonCode(str, Enum):  # noqa: UP042 - Python 3.9
    """Why a run is in its state on a worker; NONE where the state says it all."""

    NONE = ""
    SAVED = "saved"
    NOT_SAVED = "not_saved"
    PEER_ENDED = "peer_ended"
    RENDEZVOUS_FAILED = "rendezvous_failed"
    CHECKPOINTS_NOT_SHARED = "checkpoints_not_shared"
    BAD_CONFIG = "bad_config"
    LOSS_NOT_A_NUMBER = "loss_not_a_number"
    NO_STEP = "no_step"
    COMMAND_NOT_EXECUTABLE = "command_not_executable"
    COMMAND_NOT_FOUND = "command_not_found"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    SIGNAL = "signal"
    EXIT_CODE = "exit_code"
    START_FAILED = "start_failed"


EXIT_CODES = {
    DONE: (RunState.DONE, ReasonCode.NONE),
    BAD_CONFIG: (RunState.FAILED, ReasonCode.BAD_CONFIG),
    NOT_A_NUMBER: (RunState.FAILED, ReasonCode.LOSS_NOT_A_NUMBER),
    SAVED: (RunState.INTERRUPTED, ReasonCode.SAVED),
    RENDEZVOUS_FAILED: (RunState.FAILED, ReasonCode.RENDEZVOUS_FAILED),
    PEER_ENDED: (RunState.INTERRUPTED, ReasonCode.PEER_ENDED),
    NOT_SHARED: (RunState.FAILED, ReasonCode.CHECKPOINTS_NOT_SHARED),
}
"""The run contract's exit codes."""
OTHER_EXIT_CODES = {
    70: ReasonCode.NO_STEP,
    126: ReasonCode.COMMAND_NOT_EXECUTABLE,
    127: ReasonCode.COMMAND_NOT_FOUND,
}
"""What this project's trainer (70) and a shell mean by an exit code."""
RENDEZVOUS_REASONS = frozenset({ReasonCode.RENDEZVOUS_FAILED, ReasonCode.CHECKPOINTS_NOT_SHARED})
"""Failures before the trainer started. The rendezvous has their error message."""
KILLED_REASONS = frozenset({ReasonCode.KILLED, ReasonCode.OUT_OF_MEMORY})
"""Failures that the trainer cannot write an error message about."""


class ProcessState(NamedTuple):
    """The state of a run on a worker. ``signal`` is a name such as ``KILL``, empty if none."""

    state: RunState
    reason_code: ReasonCode = ReasonCode.NONE
    exit_code: int | None = None
    signal: str = ""


def process_state(
    unit: Mapping[str, str],
    heartbeat: Heartbeat | None,
    ended: Exit | None,
    rendezvous: Rendezvous | None = None,
    has_heartbeat: bool = True,
) -> ProcessState:
    """Return the state of a run on this worker.

    Args:
        unit: systemd's properties of the run's unit.
        heartbeat: what the trainer wrote last.
        ended: how the last attempt ended, if it did.
        rendezvous: whom the unit waits for.
        has_heartbeat: whether the trainer writes a heartbeat, once it has its first step.
    """
    active = unit.get("ActiveState", "inactive")
    if active == "deactivating":
        return ProcessState(RunState.STOPPING)
    if active in ACTIVE_UNIT:
        if heartbeat:
            return ProcessState(RunState.TRAINING)
        if rendezvous and rendezvous.waiting_for is not None:
            return ProcessState(RunState.WAITING)
        return ProcessState(RunState.STARTING if has_heartbeat else RunState.RUNNING)
    return ProcessState(RunState.LOST) if ended is None else end_state(ended)


def end_state(ended: Exit) -> ProcessState:
    """Return the state of an attempt that has ended (systemd.exec(5), $EXIT_CODE)."""
    if ended.code == "exited" and ended.status.isdecimal():
        code = int(ended.status)
        if code in EXIT_CODES:
            return ProcessState(*EXIT_CODES[code], exit_code=code)
        reason = OTHER_EXIT_CODES.get(code, ReasonCode.EXIT_CODE)
        if ended.result == "oom-kill":
            reason = ReasonCode.OUT_OF_MEMORY
        return ProcessState(RunState.FAILED, reason, exit_code=code)
    if ended.code not in ("killed", "dumped"):
        return ProcessState(RunState.FAILED, ReasonCode.START_FAILED)
    if ended.result == "oom-kill":
        return ProcessState(RunState.FAILED, ReasonCode.OUT_OF_MEMORY, signal=ended.status)
    if ended.status == "TERM":
        return ProcessState(RunState.INTERRUPTED, ReasonCode.NOT_SAVED, signal="TERM")
    reason = ReasonCode.KILLED if ended.status == "KILL" else ReasonCode.SIGNAL
    return ProcessState(RunState.FAILED, reason, signal=ended.status)
