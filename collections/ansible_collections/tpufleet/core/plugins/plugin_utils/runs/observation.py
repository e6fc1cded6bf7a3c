"""What a pass of the watch observes of a run: its TPUs and its processes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...module_utils.worker.run_state import ACTIVE_STATES, ReasonCode, RunState
from .causes import Cause, CauseCode, Value

READY = "READY"
GONE = "gone"
"""The state of a TPU that the API does not list."""
FOREIGN = "foreign"
"""The state of a TPU whose name another TPU has now, which this fleet did not create."""
CHANGING = "changing"
"""The state of a TPU whose workers are listed with different states."""
DEAD = frozenset({"PREEMPTED", "TERMINATED", GONE})


@dataclass(frozen=True)
class ObservedTpu:
    """One TPU in one listing of the cloud. ``is_ours``: it has this fleet's ownership label."""

    name: str
    zone: str
    id: str
    state: str
    is_ours: bool
    workers: int = 1
    health: str = ""


@dataclass(frozen=True)
class Observation:
    """A run as a pass observes it.

    Args:
        tpu_state: the state of its TPU: the API's, GONE or FOREIGN.
        processes: one for each worker in the inventory.
        workers: how many workers its TPU has.
        health: the API's health of its TPU.
        is_confirmed: whether two listings, the last one of the API itself, had the same state.
        any_worker_answers: whether any worker at all answered this controller.
        is_identified: whether the record names the TPUs by id.
        is_deletable: whether all TPUs that were found have an id and this fleet's label.
        can_be_created: whether create.yml can create the TPU again.
        tpus: the TPUs as they are now, recreated ones included.
        address: what ``-e tpu=`` must be for them.
    """

    tpu_state: str
    processes: tuple[ProcessStatus, ...] = ()
    workers: int = 1
    health: str = ""
    is_confirmed: bool = False
    any_worker_answers: bool = True
    is_identified: bool = True
    is_deletable: bool = True
    can_be_created: bool = True
    tpus: tuple[ObservedTpu, ...] = ()
    address: str = ""


MOST_TEXT = 1000


@dataclass(frozen=True)
class ProcessStatus:
    """A run's process on one worker.

    Args:
        host: the worker.
        state: what it is doing; UNREACHABLE where the worker does not answer.
        reason_code: why.
        run: the run's name.
        attempt: the launch that it belongs to.
        exit_code: how it ended, if it exited.
        signal: the signal that ended it, such as ``KILL``.
        ended_at: when, in unix seconds; 0 if unknown.
        peer: the worker whose end ended it.
        peer_exit_code: that worker's exit code; None if the worker was lost.
        waiting_for: the workers that it waits for at the rendezvous.
        error: the error message in its log, or of the rendezvous.
        phase: what the trainer says it is doing, in its own words.
        step: the last finished step; None before the first.
        steps: the step at which it is done.
        loss: of that step.
        tokens_per_second: of that step.
        has_heartbeat: whether the trainer writes a heartbeat.
        heartbeat_age: seconds since the last one.
        output_age: seconds since the last output.
        is_set_up: whether the worker is set up for this version of tpufleet.
        has_environment: whether the worker has the run's Python environment.
        other_run: another run that is active on the same chips.
    """

    host: str
    state: RunState
    reason_code: ReasonCode = ReasonCode.NONE
    run: str = ""
    attempt: int = 0
    exit_code: int | None = None
    signal: str = ""
    ended_at: float = 0.0
    peer: str = ""
    peer_exit_code: int | None = None
    waiting_for: tuple[str, ...] = ()
    error: str = ""
    phase: str = ""
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    has_heartbeat: bool = False
    heartbeat_age: float | None = None
    output_age: float | None = None
    is_set_up: bool = True
    has_environment: bool = True
    other_run: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it has processes."""
        return self.state in ACTIVE_STATES

    @property
    def has_ended_badly(self) -> bool:
        """Whether it has ended and neither succeeded nor saved."""
        ended_well = self.state is RunState.DONE or self.reason_code is ReasonCode.SAVED
        return not self.is_active and not ended_well


def cause_of(process: ProcessStatus) -> Cause:
    """Return the cause that a process ended as it did."""
    values: dict[str, Value] = {
        "host": process.host,
        "state": process.state.value,
        "reason_code": process.reason_code.value,
        "signal": process.signal,
        "peer": process.peer,
        "error": process.error,
    }
    codes = {"exit_code": process.exit_code, "peer_exit_code": process.peer_exit_code}
    known = {name: value for name, value in values.items() if value != ""}
    known |= {name: code for name, code in codes.items() if code is not None}
    return Cause(CauseCode.PROCESS, known)


def process_of(cause: Cause) -> ProcessStatus:
    """Return the process of a PROCESS cause; what is not in it is unknown."""
    return parse_process(_text(cause.values.get("host")), cause.values)


def parse_process(host: str, answer: Mapping[str, Any]) -> ProcessStatus:
    """Read what a worker reported of a run (module_utils/worker/run_unit.py, ``observe``).

    What has the wrong type reads as unknown.
    """
    beat = answer.get("heartbeat")
    heartbeat = beat if isinstance(beat, Mapping) else {}
    names = answer.get("waiting_for")
    return ProcessStatus(
        host=host,
        state=_member(RunState, answer.get("state"), RunState.UNKNOWN),
        reason_code=_member(ReasonCode, answer.get("reason_code"), ReasonCode.NONE),
        run=_text(answer.get("run")),
        attempt=_whole(answer.get("attempt")) or 0,
        exit_code=_whole(answer.get("exit_code")),
        signal=_text(answer.get("signal")),
        ended_at=_number(answer.get("ended_at")) or 0.0,
        peer=_text(answer.get("peer")),
        peer_exit_code=_whole(answer.get("peer_exit_code")),
        waiting_for=tuple(map(_text, names)) if isinstance(names, list) else (),
        error=_text(answer.get("error")),
        phase=_text(heartbeat.get("state")),
        step=_whole(heartbeat.get("step")),
        steps=_whole(heartbeat.get("steps")),
        loss=_number(heartbeat.get("loss")),
        tokens_per_second=_number(heartbeat.get("tokens_per_second")),
        has_heartbeat=bool(heartbeat),
        heartbeat_age=_number(answer.get("heartbeat_age")),
        output_age=_number(answer.get("output_age")),
        is_set_up=answer.get("is_set_up") is not False,
        has_environment=answer.get("has_environment") is not False,
    )


def _member[E: Enum](kind: type[E], value: Any, default: E) -> E:
    try:
        return kind(value)
    except ValueError:
        return default


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # JSON's integers have no largest
        return None


def _text(value: Any) -> str:
    return str(value)[:MOST_TEXT] if isinstance(value, str) else ""
