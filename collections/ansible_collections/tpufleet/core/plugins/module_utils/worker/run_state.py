"""Codes for the state of a run on one worker and for the reason of that state.

Workers report these codes. The controller turns them into sentences (plugin_utils/runs/status.py).
"""

from __future__ import annotations

from enum import Enum


class RunState(str, Enum):  # noqa: UP042 - Python 3.9
    """State of one process of a run, or of the run as a whole."""

    # States that workers report:
    STARTING = "starting"
    WAITING = "waiting"
    """The process waits for other workers at the rendezvous."""
    RUNNING = "running"
    """The trainer runs, but has written no heartbeat. Some trainers never write one."""
    TRAINING = "training"
    STOPPING = "stopping"
    DONE = "done"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    LOST = "lost"
    """The run is not running, and there is no record of how it ended."""
    # States that only the controller reports:
    HUNG = "hung"
    UNREACHABLE = "unreachable"
    STOPPED = "stopped"
    GIVEN_UP = "given_up"
    PREEMPTED = "preempted"
    PREEMPTION_SUSPECTED = "preemption_suspected"
    MAINTENANCE = "maintenance"
    ENDING = "ending"
    PARTLY_ENDED = "partly_ended"
    WAITING_FOR_TPU = "waiting_for_tpu"
    WAITING_FOR_WORKERS = "waiting_for_workers"
    WAITING_FOR_RELEASE = "waiting_for_release"
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
    """The reason for the state of a run on a worker; NONE if the state needs no explanation."""

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
