"""Decisions of the watch about the processes of a run on a TPU that is READY and reachable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...module_utils.worker.run_state import ReasonCode, RunState
from .causes import Cause, CauseCode
from .decision import Action, Decision, Situation
from .process_status import ProcessStatus, cause_of
from .watch_memory import Limits, Memory
from .watch_tpus import replace_tpu, wait_for

HARMLESS = frozenset(
    {ReasonCode.NONE, ReasonCode.SAVED, ReasonCode.NOT_SAVED, ReasonCode.PEER_ENDED}
)
"""Ends that no budget counts. KILL is none of them: most often memory ran out, and will again."""
ENDED_STATES = (RunState.DONE, RunState.INTERRUPTED, RunState.FAILED)


def decide_active(now: Situation) -> Decision:
    """Leave a run alone that is active on all workers, unless it hangs."""
    processes, limits = now.observed.processes, now.limits
    if late := now.late_heartbeats(processes):
        worst = max(late, key=lambda each: each.heartbeat_age or 0)
        seconds = worst.heartbeat_age or 0
        missing = Cause.of(CauseCode.HEARTBEAT_MISSING, host=worst.host, seconds=seconds)
        return _restart(now, RunState.HUNG, missing)
    silent = seconds_without_output(processes, limits)
    if silent is not None:
        return _restart(now, RunState.HUNG, Cause.of(CauseCode.OUTPUT_MISSING, seconds=silent))
    if now.observed.health.startswith("UNHEALTHY"):
        unhealthy = Cause.of(CauseCode.TPU_UNHEALTHY, health=now.observed.health)
        return now.stay(RunState.RUNNING, unhealthy)
    return now.stay(RunState.RUNNING)


def decide_partly_ended(now: Situation) -> Decision:
    """Wait a little for a run that has ended on some workers, then restart it."""
    active = [each for each in now.observed.processes if each.is_active]
    ended = [each for each in now.observed.processes if not each.is_active]
    hosts = ", ".join(each.host for each in ended)
    partly = Cause.of(CauseCode.PROCESSES_PARTLY_ENDED, hosts=hosts, host=active[0].host)
    ended_at = max(each.ended_at for each in ended)
    settle = now.limits.settle
    if now.seconds_in(RunState.ENDING) < settle and now.now - ended_at < settle:
        return now.stay(RunState.ENDING, partly)
    return _restart(now, RunState.PARTLY_ENDED, partly)


def decide_ended(now: Situation) -> Decision:
    """Record a run as done, launch it again or give it up, by how its processes ended."""
    observed, attempt = now.observed, now.record.attempt
    if observed.health == "UNHEALTHY_MAINTENANCE":
        return now.stay(RunState.MAINTENANCE, Cause(CauseCode.TPU_IN_MAINTENANCE))
    if busy := next((each for each in observed.processes if each.other_run), None):
        other = Cause.of(CauseCode.OTHER_RUN, run=busy.other_run, host=busy.host)
        return now.stay(RunState.WAITING_FOR_WORKERS, other)
    ended = [
        each
        for each in observed.processes
        if each.has_environment and has_known_end(each) and each.attempt == attempt
    ]
    if len(ended) == len(observed.processes) and all(each.state is RunState.DONE for each in ended):
        done = Cause(CauseCode.PROCESSES_DONE)
        return now.act(Action.RECORD_DONE, RunState.DONE, done)
    if not ended:
        return _relaunch(now, RunState.LOST, Cause(CauseCode.PROCESS_MISSING))
    first = first_ended(ended)
    cause, reasons = cause_of(first), {each.reason_code for each in ended}
    if ReasonCode.BAD_CONFIG in reasons:
        return now.give_up(cause)
    if ReasonCode.LOSS_NOT_A_NUMBER in reasons:
        nans = now.memory.nans + (now.memory.counted_attempt != attempt)
        if nans > now.limits.nans:
            return now.give_up(cause, Cause.of(CauseCode.TOO_MANY_NANS, count=nans))
        now = now.remembering(replace(now.memory, nans=nans))
        return _launch_after_crash(now, RunState.FAILED, cause)
    all_by_peers = all(each.reason_code is ReasonCode.PEER_ENDED for each in ended)
    if reasons <= HARMLESS and not all_by_peers:
        return _relaunch(now, RunState.INTERRUPTED, cause)
    return _replace_bad_worker(now, _launch_after_crash(now, RunState.FAILED, cause), cause)


def has_known_end(process: ProcessStatus) -> bool:
    """Return whether it is known how a process ended. A unit that failed to start did not run."""
    return process.state in ENDED_STATES and process.reason_code is not ReasonCode.START_FAILED


def first_ended(ended: Sequence[ProcessStatus]) -> ProcessStatus:
    """Return the process that ended first by itself. ``ended`` has at least one."""
    own = [
        each
        for each in ended
        if each.state is not RunState.DONE and each.reason_code is not ReasonCode.PEER_ENDED
    ]
    # A worker that is gone reports nothing; the others name it.
    blamed = {each.peer for each in ended if not own}
    named = [each for each in ended if each.host in blamed]
    return min(own or named or ended, key=lambda each: each.ended_at)


def seconds_without_output(processes: Sequence[ProcessStatus], limits: Limits) -> float | None:
    """Return for how long no process has written output; None if that is not too long.

    Many trainers let one process alone write, so the newest output of all counts.
    """
    ages = [each.output_age for each in processes]
    known = [age for age in ages if age is not None]
    is_asked = limits.output and not any(each.has_heartbeat for each in processes)
    if not is_asked or not known or len(known) < len(ages):
        return None
    return min(known) if min(known) > limits.output else None


def _relaunch(now: Situation, state: RunState, cause: Cause) -> Decision:
    """Launch a run again that ended without a fault of its own: at once, then ever more seldom."""
    memory = now.memory
    if now.now < memory.not_before:
        return now.stay(state, cause, wait_for(now, CauseCode.LAUNCH_IN))
    next_try = now.now + now.limits.backoff(memory.tries)
    memory = replace(memory, tries=memory.tries + 1, not_before=next_try)
    return now.remembering(memory).act(Action.LAUNCH, state, cause)


def _restart(now: Situation, state: RunState, cause: Cause) -> Decision:
    """Restart a run that hangs. It counts as a crash, and is not delayed."""
    memory = replace(_with_crash(now, 0), not_before=0.0)
    return _within_budget(now.remembering(memory), Action.RESTART, state, cause)


def _launch_after_crash(now: Situation, state: RunState, cause: Cause) -> Decision:
    """Launch a run again that crashed, within the budget. A crash counts once an attempt."""
    attempt = now.record.attempt
    if now.memory.counted_attempt != attempt:
        now = now.remembering(_with_crash(now, attempt))
    return _within_budget(now, Action.LAUNCH, state, cause)


def _with_crash(now: Situation, attempt: int) -> Memory:
    ended = [each for each in now.observed.processes if has_known_end(each)]
    bad = first_ended(ended).host if ended else ""
    memory = now.memory
    crashes = memory.crashes + 1
    return replace(
        memory,
        crashes=crashes,
        counted_attempt=attempt,
        bad_worker=bad,
        bad_times=memory.bad_times + 1 if bad and bad == memory.bad_worker else 1,
        not_before=now.now + (now.limits.backoff(crashes - 1) if crashes > 1 else 0),
    )


def _within_budget(now: Situation, action: Action, state: RunState, cause: Cause) -> Decision:
    memory, limits = now.memory, now.limits
    if limits.crashes and memory.crashes > limits.crashes:
        return now.give_up(cause, Cause.of(CauseCode.TOO_MANY_CRASHES, count=memory.crashes))
    if _is_one_bad_worker(now):
        return now.give_up(_failed_first(memory), cause, Cause(CauseCode.REPLACE_BY_HAND))
    if now.now < memory.not_before:
        return now.stay(state, cause, wait_for(now, CauseCode.LAUNCH_IN))
    return now.act(action, state, cause)


def _is_one_bad_worker(now: Situation) -> bool:
    """Return whether the same of several workers was the first to fail too often."""
    often = now.limits.same_worker and now.memory.bad_times > now.limits.same_worker
    return bool(often and now.memory.bad_worker and len(now.observed.processes) > 1)


def _failed_first(memory: Memory) -> Cause:
    return Cause.of(CauseCode.WORKER_FAILED_FIRST, host=memory.bad_worker, count=memory.bad_times)


def _replace_bad_worker(now: Situation, counted: Decision, cause: Cause) -> Decision:
    """Replace the TPU of a worker that fails again and again, rather than give the run up."""
    now = now.remembering(counted.memory)
    if counted.action is not Action.GIVE_UP or not _is_one_bad_worker(now):
        return counted
    if now.limits.crashes and now.memory.crashes > now.limits.crashes:
        return counted
    now = now.remembering(replace(now.memory, not_before=0.0))
    better = replace_tpu(now, RunState.FAILED, _failed_first(now.memory), cause)
    return counted if better.action is Action.NOTHING else better
