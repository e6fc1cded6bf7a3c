"""The observed state of a run: its TPUs and its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from ...module_utils.worker.contract import SAVED
from ...module_utils.worker.run_files import as_count, as_number, as_text, read_heartbeat
from ...module_utils.worker.run_state import ACTIVE_STATES, ReasonCode, RunState
from .causes import Cause, CauseCode, Value

READY = "READY"
GONE = "gone"
"""The state of a TPU that does not exist: the API does not list it."""
NOT_LISTED = "not listed"
"""The state of a TPU whose zone the inventory does not list; its real state is unknown."""
FOREIGN = "foreign"
"""The state of a run's TPU if a TPU of another fleet or person has its name now."""
CHANGING = "changing"
"""The state of a TPU whose workers have different states in the inventory."""
GOOD_STATES = ACTIVE_STATES - {RunState.HUNG} | {RunState.DONE}
DEAD = frozenset({"PREEMPTED", "TERMINATED", GONE})


@dataclass(frozen=True)
class ObservedTpu:
    """One TPU that the API or the inventory lists.

    Args:
        state: its state according to the API, or CHANGING if its workers have different states.
        is_ours: whether it has this fleet's label.
        workers: how many workers it has.
        health: its health according to the API.
        created: when its creation began, in unix seconds; 0 if unknown. Only the API knows it.
    """

    name: str
    zone: str
    id: str
    state: str
    is_ours: bool
    workers: int = 1
    health: str = ""
    created: float = 0.0


@dataclass(frozen=True)
class Observation:
    """The observed state of one run in one pass of the watch.

    Args:
        tpu_state: the state of its TPU: a state of the API, GONE (it does not exist), NOT_LISTED
            (unknown), FOREIGN (its name belongs to a foreign TPU), or CHANGING (its workers have
            different states).
        processes: one for each worker of its TPU in the inventory; empty if the TPU is not READY.
        workers: how many workers its TPU has.
        health: the health of its TPU according to the API.
        is_confirmed: whether the last two lists of TPUs agree on ``tpu_state``.
        any_worker_answers: whether any worker of any TPU answered this controller.
        can_be_created: whether create.yml can recreate the TPU; it can't recreate a multislice.
        tpus: the run's existing TPUs (several for a multislice), or a foreign TPU with their name.
        address: the value of ``-e tpu=`` that selects these TPUs.
    """

    tpu_state: str
    processes: tuple[ProcessStatus, ...] = ()
    workers: int = 1
    health: str = ""
    is_confirmed: bool = False
    any_worker_answers: bool = True
    can_be_created: bool = True
    tpus: tuple[ObservedTpu, ...] = ()
    address: str = ""

    @property
    def is_deletable(self) -> bool:
        """Whether the run has a TPU, and each of its TPUs has an id and this fleet's label."""
        return bool(self.tpus) and all(tpu.is_ours and tpu.id for tpu in self.tpus)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The progress that a trainer reports in its heartbeat; None means unknown.

    Args:
        step: the last step that the attempt has finished; None before its first step.
        steps: the number of steps after which the run is done.
        loss: the loss at ``step``.
        tokens_per_second: the speed at ``step``.
        mfu: model FLOPs utilization, between 0 and 1.
        device_bytes: memory in use on the fullest device.
        device_limit_bytes: total memory of that device.
    """

    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    device_bytes: int | None = None
    device_limit_bytes: int | None = None


FIGURES = tuple(figure.name for figure in fields(Figures))


@dataclass(frozen=True)
class ProcessStatus(Figures):
    """A run's process on one worker, with the progress that it reports.

    Args:
        host: the worker's name in the inventory.
        state: the state of the process; UNREACHABLE if the worker does not answer.
        reason_code: the reason for the state.
        run: the run's name.
        attempt: the number of the attempt that it belongs to.
        exit_code: its exit code; None if it has not exited.
        signal: the signal that ended it, such as ``KILL``.
        ended_at: when it ended, in unix seconds; 0 if unknown.
        peer: the other worker whose end or loss made this process end.
        peer_exit_code: the exit code on ``peer``; None if that worker was lost.
        waiting_for: the workers that it waits for at the rendezvous.
        error: the error message in its log, or of the rendezvous.
        phase: the state that the trainer writes to its heartbeat, in the trainer's own words.
        start_step: the step from which the attempt starts; None if unknown.
        has_heartbeat: whether the trainer writes a heartbeat.
        heartbeat_age: seconds since the last heartbeat.
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
    start_step: int | None = None
    has_heartbeat: bool = False
    heartbeat_age: float | None = None
    output_age: float | None = None
    is_set_up: bool = True
    has_environment: bool = True
    other_run: str = ""

    @property
    def is_active(self) -> bool:
        """Whether the process is known to be active; false if its worker is unreachable."""
        return self.state in ACTIVE_STATES

    @property
    def is_unreachable(self) -> bool:
        """Whether the worker did not report the state of the process."""
        return self.state in (RunState.UNREACHABLE, RunState.UNKNOWN)

    @property
    def reached_step(self) -> int | None:
        """The last finished step; if none has finished, the step from which the attempt starts."""
        return self.start_step if self.step is None else self.step

    @property
    def has_saved_after_crash(self) -> bool:
        """Whether the process saved a checkpoint after the process on ``peer`` had crashed."""
        return self.reason_code is ReasonCode.SAVED and self.peer_exit_code not in (None, SAVED)

    @property
    def has_ended_badly(self) -> bool:
        """Whether the process is neither active, nor done, nor ended after saving a checkpoint."""
        ended_well = self.state is RunState.DONE or self.reason_code is ReasonCode.SAVED
        return not self.is_active and not ended_well


def cause_of(process: ProcessStatus) -> Cause:
    """Return a Cause with the code PROCESS and the values that describe the state of a process."""
    values: dict[str, Value | None] = {
        "host": process.host,
        "state": process.state.value,
        "reason_code": process.reason_code.value,
        "exit_code": process.exit_code,
        "signal": process.signal,
        "peer": process.peer,
        "peer_exit_code": process.peer_exit_code,
        "error": process.error,
    }
    known = {name: value for name, value in values.items() if value is not None and value != ""}
    return Cause(CauseCode.PROCESS, known)


def process_of(cause: Cause) -> ProcessStatus:
    """Return the process that a Cause with the code PROCESS describes (see cause_of)."""
    return parse_process(as_text(cause.values.get("host")), cause.values)


def parse_process(host: str, answer: Mapping[str, Any]) -> ProcessStatus:
    """Parse what a worker returned about a run (module_utils/worker/run_unit.py, ``observe``).

    ``host`` is the worker's inventory name. A value of the wrong type counts as unknown.
    """
    heartbeat_value = answer.get("heartbeat")
    parsed = read_heartbeat(heartbeat_value) if isinstance(heartbeat_value, Mapping) else None
    heartbeat = parsed._asdict() if parsed else {}
    names = answer.get("waiting_for")
    return ProcessStatus(
        host=host,
        state=_member(RunState, answer.get("state"), RunState.UNKNOWN),
        reason_code=_member(ReasonCode, answer.get("reason_code"), ReasonCode.NONE),
        run=as_text(answer.get("run")),
        attempt=as_count(answer.get("attempt")) or 0,
        exit_code=as_count(answer.get("exit_code")),
        signal=as_text(answer.get("signal")),
        ended_at=as_number(answer.get("ended_at")) or 0.0,
        peer=as_text(answer.get("peer")),
        peer_exit_code=as_count(answer.get("peer_exit_code")),
        waiting_for=tuple(map(as_text, names)) if isinstance(names, list) else (),
        error=as_text(answer.get("error")),
        phase=heartbeat.get("state") or "",
        start_step=heartbeat.get("start_step"),
        has_heartbeat=parsed is not None,
        heartbeat_age=as_number(answer.get("heartbeat_age")),
        output_age=as_number(answer.get("output_age")),
        is_set_up=answer.get("is_set_up") is not False,
        has_environment=answer.get("has_environment") is not False,
        **{name: heartbeat.get(name) for name in FIGURES},
    )


def _member[E: Enum](kind: type[E], value: Any, default: E) -> E:
    try:
        return kind(value)
    except ValueError:
        return default


def deciding_process(processes: Sequence[ProcessStatus]) -> ProcessStatus:
    """Return the process whose state is the state of the run.

    This is the first failed process, else the first that waits at the rendezvous, else the first in
    the most common state. Processes that ended because of a peer are ignored if there are others.
    """
    own = [process for process in processes if process.reason_code is not ReasonCode.PEER_ENDED]
    failed = [process for process in own if not is_fine(process)]
    waiting = [process for process in own if process.state is RunState.WAITING]
    if failed or waiting:
        return (failed or waiting)[0]
    ((state, _),) = Counter(process.state for process in own or processes).most_common(1)
    return next(process for process in own or processes if process.state is state)


def is_fine(process: ProcessStatus) -> bool:
    """Return whether the process has no failure of its own.

    That is: it is active and not hung, is done, saved a checkpoint when it was interrupted, or
    ended only because another process ended.
    """
    harmless = (ReasonCode.SAVED, ReasonCode.PEER_ENDED)
    return process.state in GOOD_STATES or process.reason_code in harmless
