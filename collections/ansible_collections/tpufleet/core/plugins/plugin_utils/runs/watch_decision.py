"""The watch's decision for one run: what to do when its observed state is not the desired state.

The argument ``situation`` of most functions has the record, observed state and memory of the run,
and the time. These functions use no clock and no network. Passes share state only through
the field ``watch`` of the record (Memory). So a pass may be killed at any point, and the next pass,
on any controller, continues from the recorded state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...module_utils.worker.run_state import ReasonCode, RunState
from .causes import Cause, CauseCode
from .decision import Decision, Situation
from .event_kind import Action, DesiredState
from .observation import DEAD, FOREIGN, NOT_LISTED, READY, Observation, ProcessStatus, cause_of
from .record import RunRecord
from .wanted_time import TimeUse
from .watch_memory import Limits, Memory
from .watch_tpus import decide_lost, decide_unreachable, replace_bad_worker, workers_in_use


def decide(
    record: RunRecord, observed: Observation, now: float, limits: Limits | None = None
) -> Decision:
    """Return what to do next for a run.

    ``observed`` is its observed state, ``now`` is in unix seconds, and ``limits`` are the limits of
    the watch, by default ``Limits()``.
    """
    best = max((process.step or 0 for process in observed.processes), default=0)
    is_active = any(process.is_active for process in observed.processes)
    limits = limits or Limits()
    memory = Memory.of(record.watch).at_time(now, limits).with_step(best, is_active)
    situation = Situation(record, observed, memory, now, limits)
    if record.is_wanted:
        return _decide_wanted(situation)
    if record.wanted is DesiredState.DONE:
        return situation.stay(RunState.DONE)
    hosts = [process.host for process in observed.processes if process.is_active]
    if not hosts:
        return situation.stay(RunState.STOPPED)
    still_active = Cause.of(CauseCode.PROCESSES_STILL_ACTIVE, hosts=", ".join(hosts))
    return situation.act(Action.STOP, RunState.STOPPED, still_active)


def _decide_wanted(situation: Situation) -> Decision:
    observed = situation.observed
    if observed.tpu_state == FOREIGN:
        foreign = next(tpu for tpu in observed.tpus if not tpu.is_ours)
        taken = Cause.of(CauseCode.TPU_NAME_TAKEN, tpu=foreign.name, zone=foreign.zone)
        return situation.stay(RunState.NAME_TAKEN, taken)
    if observed.tpu_state == NOT_LISTED:
        zone = situation.record.launch.nodes[0].zone
        return situation.stay(
            RunState.WAITING_FOR_TPU, Cause.of(CauseCode.ZONE_NOT_LISTED, zone=zone)
        )
    if observed.tpu_state in DEAD:
        return decide_lost(situation)
    if observed.tpu_state != READY:
        tpu_state = Cause.of(CauseCode.TPU_STATE, tpu_state=observed.tpu_state)
        return situation.stay(RunState.WAITING_FOR_TPU, tpu_state)
    if _was_recreated(situation):
        # The TPU exists again, so forget the delay before the next try to create it: the launch of
        # the run must not wait.
        situation = situation.with_memory(situation.memory.without_wait())
    process_count = len(observed.processes)
    if process_count < observed.workers:
        missing = Cause.of(CauseCode.WORKERS_MISSING, count=process_count, of=observed.workers)
        return situation.stay(RunState.WAITING_FOR_TPU, missing)
    if any(process.is_unreachable for process in observed.processes):
        return decide_unreachable(situation)
    active = sum(process.is_active for process in observed.processes)
    if active == process_count:
        return decide_active(situation)
    return decide_partly_ended(situation) if active else decide_ended(situation)


def _was_recreated(situation: Situation) -> bool:
    if situation.memory.state == RunState.WAITING_FOR_TPU:
        return situation.record.phase is TimeUse.CAPACITY
    return situation.memory.state == RunState.PREEMPTED


HARMLESS = frozenset(
    {ReasonCode.NONE, ReasonCode.SAVED, ReasonCode.NOT_SAVED, ReasonCode.PEER_ENDED}
)
"""Reasons for the end of a process that do not count as a crash.

ReasonCode.KILLED is not among them, because processes are usually killed when memory runs out.
"""
NOT_BLAMED = (HARMLESS - {ReasonCode.PEER_ENDED}) | {
    ReasonCode.LOSS_NOT_A_NUMBER,
    ReasonCode.RENDEZVOUS_FAILED,
    ReasonCode.CHECKPOINTS_NOT_SHARED,
    ReasonCode.COMMAND_NOT_EXECUTABLE,
    ReasonCode.COMMAND_NOT_FOUND,
}
"""Reasons for the end of a process that say nothing about its worker."""
LAUNCH_S = 300.0
"""For how many seconds after its launch a run without a process counts as starting."""
ENDED_STATES = (RunState.DONE, RunState.INTERRUPTED, RunState.FAILED)


def decide_active(situation: Situation) -> Decision:
    """Decide about a run that is active on all workers: do nothing, or restart it if it hangs."""
    processes, limits = situation.observed.processes, situation.limits
    if (seconds := _seconds_since_unseen_launch(situation)) is not None:
        recently = Cause.of(CauseCode.LAUNCHED_RECENTLY, seconds=seconds)
        return situation.stay(RunState.STARTING, recently)
    if late := situation.late_heartbeats(processes):
        worst = max(late, key=lambda process: process.heartbeat_age or 0)
        seconds = worst.heartbeat_age or 0
        missing = Cause.of(CauseCode.HEARTBEAT_MISSING, host=worst.host, seconds=seconds)
        return _restart(situation, RunState.HUNG, missing)
    silent = seconds_without_output(processes, limits)
    if silent is not None:
        return _restart(
            situation, RunState.HUNG, Cause.of(CauseCode.OUTPUT_MISSING, seconds=silent)
        )
    if situation.observed.health.startswith("UNHEALTHY"):
        unhealthy = Cause.of(CauseCode.TPU_UNHEALTHY, health=situation.observed.health)
        return situation.stay(RunState.RUNNING, unhealthy)
    return situation.stay(RunState.RUNNING)


def _seconds_since_unseen_launch(situation: Situation) -> float | None:
    """Return the seconds since the launch if a worker has not reported it yet, else None.

    Such a worker reports an earlier attempt, because its state was read before the launch reached
    it. Also returns None if the launch was more than LAUNCH_S seconds ago.
    """
    record = situation.record
    is_earlier = any(process.attempt < record.attempt for process in situation.observed.processes)
    if not is_earlier or record.launched_at is None:
        return None
    seconds = abs(situation.now - record.launched_at)
    return seconds if seconds < LAUNCH_S else None


def decide_partly_ended(situation: Situation) -> Decision:
    """Decide about a run that is active on only some of its workers.

    After ``limits.settle`` seconds, restart the run, or replace its TPU if the same worker has
    been the first to fail too often. If all inactive processes are done, wait for
    ``limits.heartbeat`` seconds instead, because the active ones may be saving the last checkpoint.

    The wait begins with the first pass that observed this state. The end times that workers report
    are not used: a worker's clock may be wrong, and its last process may be of an earlier attempt.
    """
    active = [process for process in situation.observed.processes if process.is_active]
    ended = [process for process in situation.observed.processes if not process.is_active]
    hosts = ", ".join(process.host for process in ended)
    partly = Cause.of(CauseCode.PROCESSES_PARTLY_ENDED, hosts=hosts, host=active[0].host)
    # Do not restart a run whose active processes all wait for the rendezvous: the rendezvous has
    # its own time limit, and a launch may still be starting the other processes.
    is_starting = all(process.state is RunState.WAITING for process in active)
    is_done = all(process.state is RunState.DONE for process in ended)
    limit = situation.limits.heartbeat if is_done else situation.limits.settle
    if is_starting:
        return situation.stay(RunState.STARTING, partly)
    if in_use := workers_in_use(situation.observed):
        return situation.stay(*in_use)
    if situation.seconds_in(RunState.ENDING) < limit:
        return situation.stay(RunState.ENDING, partly)
    if refused := refused_process(situation):
        return situation.give_up(cause_of(refused))
    return _restart(situation, RunState.PARTLY_ENDED, partly)


def decide_ended(situation: Situation) -> Decision:
    """Decide about a run that has ended on all workers: record it as done, relaunch or give up."""
    observed, ended = situation.observed, ended_processes(situation)
    is_done = all(process.state is RunState.DONE for process in ended)
    if is_done and len(ended) == len(observed.processes):
        done = Cause(CauseCode.PROCESSES_DONE)
        return situation.act(Action.RECORD_DONE, RunState.DONE, done)
    if in_use := workers_in_use(observed):
        return situation.stay(*in_use)
    if (seconds := _seconds_since_unfinished_launch(situation, ended)) is not None:
        # Do not relaunch yet: the train.yml that recorded the launch may still be pulling the image
        # or pushing the code.
        recently = Cause.of(CauseCode.LAUNCHED_RECENTLY, seconds=seconds)
        return situation.stay(RunState.STARTING, recently)
    first = first_ended(situation)
    if first is None:
        missing = Cause(CauseCode.PROCESS_MISSING)
        return situation.act_with_delays(Action.LAUNCH, RunState.LOST, missing)
    if refused := refused_process(situation):
        return situation.give_up(cause_of(refused))
    cause, reasons = cause_of(first), {process.reason_code for process in ended}
    if ReasonCode.LOSS_NOT_A_NUMBER in reasons:
        memory = situation.memory
        nans = memory.nans
        if memory.counted_attempt != situation.record.attempt:
            nans += 1
        if nans > situation.limits.nans:
            return situation.give_up(cause, Cause.of(CauseCode.TOO_MANY_NANS, count=nans))
        situation = situation.with_memory(replace(memory, nans=nans))
        return _launch_after_crash(situation, cause)
    all_by_peers = all(process.reason_code is ReasonCode.PEER_ENDED for process in ended)
    if reasons <= HARMLESS and not all_by_peers:
        return situation.act_with_delays(Action.LAUNCH, RunState.INTERRUPTED, cause)
    return _launch_after_crash(situation, cause)


def _seconds_since_unfinished_launch(
    situation: Situation, ended: Sequence[ProcessStatus]
) -> float | None:
    """Return the seconds since the launch if that launch may still start processes, else None.

    Returns None if

    - the launch began more than LAUNCH_S seconds ago,
    - the watch itself has tried to launch the run (``memory.tries``),
    - all processes of the run have ended (``ended`` lists those that have), or
    - a process has ended for any reason except a failed rendezvous.
    """
    observed, memory = situation.observed, situation.memory
    launched_at = situation.record.launched_at
    if launched_at is None or abs(situation.now - launched_at) >= LAUNCH_S or memory.tries:
        return None
    all_rendezvous_failed = all(
        process.reason_code is ReasonCode.RENDEZVOUS_FAILED for process in ended
    )
    if all_rendezvous_failed and len(ended) < len(observed.processes):
        return situation.now - launched_at
    return None


def ended_processes(situation: Situation) -> list[ProcessStatus]:
    """Return the processes of the last attempt that have ended.

    A process that systemd could not start does not count, nor does a process of a worker without
    the run's environment.
    """
    return [
        process
        for process in situation.observed.processes
        if process.attempt == situation.record.attempt
        and process.state in ENDED_STATES
        and process.reason_code is not ReasonCode.START_FAILED
        and process.has_environment
    ]


def refused_process(situation: Situation) -> ProcessStatus | None:
    """Return a process of the last attempt that refused its config; None if none did."""
    ended = ended_processes(situation)
    return next(
        (process for process in ended if process.reason_code is ReasonCode.BAD_CONFIG), None
    )


def first_ended(situation: Situation) -> ProcessStatus | None:
    """Return the process of the last attempt that ended first; None if none has ended.

    Processes that are done, or that ended because of a peer, are ignored. If no other process has
    ended, the result is the peer that the ignored processes report as the cause; this peer may even
    be active, on a worker that has lost its connection. If they report no peer of the run, the
    result is the ignored process that ended first. A process whose end time is unknown counts as
    the last.
    """
    ended = ended_processes(situation)
    failed_processes = [
        process
        for process in ended
        if process.state is not RunState.DONE and process.reason_code is not ReasonCode.PEER_ENDED
    ]
    peers = {process.peer for process in ended}
    reported_peers = [process for process in situation.observed.processes if process.host in peers]
    candidates = failed_processes or reported_peers or ended
    return min(candidates, key=lambda process: process.ended_at or math.inf, default=None)


def _worker_to_blame(situation: Situation) -> str:
    """Return the worker on which the run failed first; "" if that is not certain.

    If a worker is blamed too often, its TPU is deleted. Therefore nobody is blamed if any process

    - ended for a reason in NOT_BLAMED, unless it saved a checkpoint because a peer had crashed,
    - ended at an unknown time, or
    - is LOST: its worker does not know how it ended,

    or if the process that ended first names a cause (``peer``) that is not a worker of the run.
    """
    ended, attempt = ended_processes(situation), situation.record.attempt
    failed = [process for process in ended if process.state is not RunState.DONE]
    first = first_ended(situation)
    if first is None or first.state is RunState.DONE or first.has_saved_after_crash:
        return ""
    if any(
        (process.reason_code in NOT_BLAMED and not process.has_saved_after_crash)
        or not process.ended_at
        for process in failed
    ):
        return ""
    if first.state not in ENDED_STATES or first.reason_code is ReasonCode.PEER_ENDED:
        return first.host if first.host in {process.peer for process in ended} else ""
    is_any_lost = any(
        process.state is RunState.LOST and process.attempt == attempt
        for process in situation.observed.processes
    )
    return "" if is_any_lost else first.host


def seconds_without_output(processes: Sequence[ProcessStatus], limits: Limits) -> float | None:
    """Return the seconds since the last output of any process, if they exceed ``limits.output``.

    The newest output of all processes counts, since in many trainers only one process writes.
    Returns None if the limit is not exceeded or is 0, if a process has a heartbeat, or if the age
    of any process's output is unknown.
    """
    ages = [process.output_age for process in processes]
    known = [age for age in ages if age is not None]
    applies = limits.output and not any(process.has_heartbeat for process in processes)
    if not applies or not known or len(known) < len(ages):
        return None
    return min(known) if min(known) > limits.output else None


def _restart(situation: Situation, state: RunState, cause: Cause) -> Decision:
    """Decide to restart a run that hangs or has ended on only some workers.

    The first restart of an attempt is immediate. It counts as a crash, so after too many crashes
    the decision is to replace the TPU or to give up instead. If the attempt remains active after
    its first restart, restart it again with growing delays.
    """
    memory = _count_crash(situation)
    if memory.counted_attempt != situation.memory.counted_attempt:
        memory = replace(memory, not_before=0.0)
        return _act_within_budget(situation.with_memory(memory), Action.RESTART, state, cause)
    return situation.act_with_delays(Action.RESTART, state, cause)


def _launch_after_crash(situation: Situation, cause: Cause) -> Decision:
    """Decide to relaunch a crashed run, to replace its TPU or to give up."""
    situation = situation.with_memory(_count_crash(situation))
    return _act_within_budget(situation, Action.LAUNCH, RunState.FAILED, cause)


def _count_crash(situation: Situation) -> Memory:
    """Return the watch's memory with this crash counted, unless this attempt is already counted."""
    memory, attempt = situation.memory, situation.record.attempt
    if memory.counted_attempt == attempt:
        return memory
    bad_worker = _worker_to_blame(situation)
    crashes = memory.crashes + 1
    return replace(
        memory,
        crashes=crashes,
        counted_attempt=attempt,
        bad_worker=bad_worker,
        bad_times=memory.bad_times + 1 if bad_worker and bad_worker == memory.bad_worker else 1,
        not_before=situation.now + (situation.limits.backoff(crashes - 1) if crashes > 1 else 0),
    )


def _act_within_budget(
    situation: Situation, action: Action, state: RunState, cause: Cause
) -> Decision:
    """Decide to take ``action`` now or after a delay, unless the limits forbid it.

    After too many crashes, decides to give up. If one worker failed first too often, decides to
    replace its TPU, or to give up if the watch must not replace it.
    """
    memory, limits = situation.memory, situation.limits
    if limits.crashes and memory.crashes > limits.crashes:
        return situation.give_up(cause, Cause.of(CauseCode.TOO_MANY_CRASHES, count=memory.crashes))
    if _has_bad_worker(situation):
        return replace_bad_worker(situation, cause)
    if delay := situation.delay(action):
        return situation.stay(state, cause, delay)
    return situation.act(action, state, cause)


def _has_bad_worker(situation: Situation) -> bool:
    """Return whether the same worker failed first in more than ``same_worker`` crashes in a row.

    ``same_worker`` is in the watch's limits; 0 means no limit. False if the run has one worker.
    """
    memory, limit = situation.memory, situation.limits.same_worker
    if not limit or not memory.bad_worker:
        return False
    return memory.bad_times > limit and len(situation.observed.processes) > 1
