"""The state of a run whose attempt has ended, and the reason, from the exit code or signal."""

from __future__ import annotations

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
from .run_files import Exit
from .run_state import ReasonCode, RunState

EXIT_CODES = {
    DONE: (RunState.DONE, ReasonCode.NONE),
    BAD_CONFIG: (RunState.FAILED, ReasonCode.BAD_CONFIG),
    NOT_A_NUMBER: (RunState.FAILED, ReasonCode.LOSS_NOT_A_NUMBER),
    SAVED: (RunState.INTERRUPTED, ReasonCode.SAVED),
    RENDEZVOUS_FAILED: (RunState.FAILED, ReasonCode.RENDEZVOUS_FAILED),
    PEER_ENDED: (RunState.INTERRUPTED, ReasonCode.PEER_ENDED),
    NOT_SHARED: (RunState.FAILED, ReasonCode.CHECKPOINTS_NOT_SHARED),
}
"""The state and the reason for each exit code of the run contract."""
OTHER_EXIT_CODES = {
    70: ReasonCode.NO_STEP,
    126: ReasonCode.COMMAND_NOT_EXECUTABLE,
    127: ReasonCode.COMMAND_NOT_FOUND,
}
"""Reasons for exit codes outside the run contract.

This project's trainer exits with 70. Shells exit with 126 and 127 if a command cannot be run.
"""
KILLED_REASONS = frozenset({ReasonCode.KILLED, ReasonCode.OUT_OF_MEMORY})
"""Failures after which the log has no error message, because the trainer was killed."""


class ProcessState(NamedTuple):
    """The state of a run on a worker, and its reason.

    ``signal`` is the signal that ended the trainer, such as ``KILL``; empty if none did.
    """

    state: RunState
    reason_code: ReasonCode = ReasonCode.NONE
    exit_code: int | None = None
    signal: str = ""


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
