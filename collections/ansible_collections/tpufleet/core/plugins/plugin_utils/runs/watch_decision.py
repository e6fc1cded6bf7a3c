"""The watch's decision for one run: from its desired and observed state to one action.

The argument ``now`` of most functions is the Situation of the run: its record, observed state,
memory, and the time. These functions use no clock and no network. Passes share state only through
the field ``watch`` of the record (Memory). So a pass may be killed at any point, and the next pass,
on any controller, continues from the recorded state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...module_utils.worker.run_state import ReasonCode, RunState
from .causes import Cause, CauseCode
from .decision import Decision, Situation
from .event_kind import RECREATIONS, Action, DesiredState
from .observation import DEAD, FOREIGN, NOT_LISTED, READY, Observation, ProcessStatus, cause_of
from .record import RunRecord
from .watch_memory import Limits, Memory


def decide(
    record: RunRecord, observed: Observation, now: float, limits: Limits | None = None
) -> Decision:
    """Return what to do next for a run.

    ``observed`` is its observed state, ``now`` is in unix seconds, and ``limits`` are the limits of
    the watch, by default ``Limits()``.
    """
    best = max((each.step or 0 for each in observed.processes), default=0)
    is_active = any(each.is_active for each in observed.processes)
    memory = Memory.of(record.watch).with_step(best, is_active)
    now_situation = Situation(record, observed, memory, now, limits or Limits())
    if record.is_wanted:
        return _decide_wanted(now_situation)
    if record.wanted is DesiredState.DONE:
        return now_situation.stay(RunState.DONE)
    hosts = [each.host for each in observed.processes if each.is_active]
    if not hosts:
        return now_situation.stay(RunState.STOPPED)
    still_active = Cause.of(CauseCode.PROCESSES_STILL_ACTIVE, hosts=", ".join(hosts))
    return now_situation.act(Action.STOP, RunState.STOPPED, still_active)


def _decide_wanted(now: Situation) -> Decision:
    observed = now.observed
    if not observed.is_identified:
        not_recorded = Cause.of(CauseCode.TPU_NOT_RECORDED, run=now.record.run)
        return now.stay(RunState.NOT_WATCHED, not_recorded)
    if observed.tpu_state == FOREIGN:
        return now.stay(RunState.NAME_TAKEN, _name_taken(observed))
    if observed.tpu_state == NOT_LISTED:
        zone = now.record.launch.nodes[0].zone
        return now.stay(RunState.WAITING_FOR_TPU, Cause.of(CauseCode.ZONE_NOT_LISTED, zone=zone))
    if observed.tpu_state in DEAD:
        return decide_lost(now)
    if now.memory.state == RunState.PREEMPTED:
        # The TPU exists again. Memory still has a delay before another try to create it, which must
        # not delay the launch of the run.
        now = now.remembering(now.memory.without_wait())
    if observed.tpu_state != READY:
        tpu_state = Cause.of(CauseCode.TPU_STATE, tpu_state=observed.tpu_state)
        return now.stay(RunState.WAITING_FOR_TPU, tpu_state)
    there = len(observed.processes)
    if there < observed.workers:
        missing = Cause.of(CauseCode.WORKERS_MISSING, count=there, of=observed.workers)
        return now.stay(RunState.WAITING_FOR_TPU, missing)
    if any(map(is_unreachable, observed.processes)):
        return decide_unreachable(now)
    active = sum(each.is_active for each in observed.processes)
    if active == there:
        return decide_active(now)
    return decide_partly_ended(now) if active else decide_ended(now)


def _name_taken(observed: Observation) -> Cause:
    tpu = next((tpu for tpu in observed.tpus if not tpu.is_ours), None)
    where = {"tpu": tpu.name, "zone": tpu.zone} if tpu else {}
    return Cause.of(CauseCode.TPU_NAME_TAKEN, **where)


HARMLESS = frozenset(
    {ReasonCode.NONE, ReasonCode.SAVED, ReasonCode.NOT_SAVED, ReasonCode.PEER_ENDED}
)
"""Reasons for the end of a process that do not count as a crash.

ReasonCode.KILLED is not among them, because processes are usually killed when memory runs out.
"""
LAUNCH_S = 300.0
"""For how many seconds after its launch a run without a process counts as starting."""
ENDED_STATES = (RunState.DONE, RunState.INTERRUPTED, RunState.FAILED)


def decide_active(now: Situation) -> Decision:
    """Decide about a run that is active on all workers: do nothing, or restart it if it hangs."""
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
    """Decide about a run that is active on some of its workers and not on the others.

    Restart it if that lasts longer than ``limits.settle`` seconds. If all inactive processes are
    done, the limit is ``limits.heartbeat``, because the others may be saving the last checkpoint.
    The passes of the watch measure this time. The times that workers report are not used, because
    a worker's clock may be wrong, and its last process may be of an earlier attempt.
    """
    active = [each for each in now.observed.processes if each.is_active]
    ended = [each for each in now.observed.processes if not each.is_active]
    hosts = ", ".join(each.host for each in ended)
    partly = Cause.of(CauseCode.PROCESSES_PARTLY_ENDED, hosts=hosts, host=active[0].host)
    # The rendezvous has its own time limit, and a launch may still be starting other processes.
    is_starting = all(each.state is RunState.WAITING for each in active)
    is_done = all(each.state is RunState.DONE for each in ended)
    limit = now.limits.heartbeat if is_done else now.limits.settle
    if is_starting:
        return now.stay(RunState.STARTING, partly)
    if now.seconds_in(RunState.ENDING) < limit:
        return now.stay(RunState.ENDING, partly)
    if refused := refused_process(now):
        return now.give_up(cause_of(refused))
    return _restart(now, RunState.PARTLY_ENDED, partly)


def decide_ended(now: Situation) -> Decision:
    """Decide about a run that has ended on all workers: record it as done, relaunch or give up."""
    observed, ended = now.observed, ended_processes(now)
    if observed.health == "UNHEALTHY_MAINTENANCE":
        return now.stay(RunState.MAINTENANCE, Cause(CauseCode.TPU_IN_MAINTENANCE))
    if len(ended) == len(observed.processes) and all(each.state is RunState.DONE for each in ended):
        done = Cause(CauseCode.PROCESSES_DONE)
        return now.act(Action.RECORD_DONE, RunState.DONE, done)
    if busy := next((each for each in observed.processes if each.other_run), None):
        other = Cause.of(CauseCode.OTHER_RUN, run=busy.other_run, host=busy.host)
        return now.stay(RunState.WAITING_FOR_WORKERS, other)
    if (seconds := _seconds_of_start(now, ended)) is not None:
        # A user's train.yml may still be pulling the image or pushing the code.
        recently = Cause.of(CauseCode.LAUNCHED_RECENTLY, seconds=seconds)
        return now.stay(RunState.STARTING, recently)
    first = first_ended(now)
    if first is None:
        return _with_delays(now, Action.LAUNCH, RunState.LOST, Cause(CauseCode.PROCESS_MISSING))
    if refused := refused_process(now):
        return now.give_up(cause_of(refused))
    cause, reasons = cause_of(first), {each.reason_code for each in ended}
    if ReasonCode.LOSS_NOT_A_NUMBER in reasons:
        nans = now.memory.nans + (now.memory.counted_attempt != now.record.attempt)
        if nans > now.limits.nans:
            return now.give_up(cause, Cause.of(CauseCode.TOO_MANY_NANS, count=nans))
        now = now.remembering(replace(now.memory, nans=nans))
        return _launch_after_crash(now, cause)
    all_by_peers = all(each.reason_code is ReasonCode.PEER_ENDED for each in ended)
    if reasons <= HARMLESS and not all_by_peers:
        return _with_delays(now, Action.LAUNCH, RunState.INTERRUPTED, cause)
    return _replace_bad_worker(now, _launch_after_crash(now, cause), cause)


def _seconds_of_start(now: Situation, ended: Sequence[ProcessStatus]) -> float | None:
    """Return how many seconds ago the run was launched, if the launch may still start processes.

    Returns None otherwise. ``ended`` has the processes that have ended. No more processes start if
    all have ended, or if one has ended for another reason than a failed rendezvous.
    """
    launched_at = now.record.launched_at
    if launched_at is None or abs(now.now - launched_at) >= LAUNCH_S or now.memory.tries:
        return None
    waited = all(each.reason_code is ReasonCode.RENDEZVOUS_FAILED for each in ended)
    return now.now - launched_at if waited and len(ended) < len(now.observed.processes) else None


def ended_processes(now: Situation) -> list[ProcessStatus]:
    """Return the processes of the last attempt that have ended.

    A process that systemd could not start does not count, nor does a process of a worker without
    the run's environment.
    """
    return [
        each
        for each in now.observed.processes
        if each.attempt == now.record.attempt
        and each.state in ENDED_STATES
        and each.reason_code is not ReasonCode.START_FAILED
        and each.has_environment
    ]


def refused_process(now: Situation) -> ProcessStatus | None:
    """Return a process of the last attempt that refused its config; None if none did."""
    ended = ended_processes(now)
    return next((each for each in ended if each.reason_code is ReasonCode.BAD_CONFIG), None)


def first_ended(now: Situation) -> ProcessStatus | None:
    """Return the process of the last attempt that ended first; None if none has ended.

    Processes that are done, or that ended because of a peer, do not count. If no other process has
    ended, return the peer that they report. How it ended may be unknown, or it may still be active
    on a worker that lost its connection to the others. Without such a peer, all processes count.
    """
    ended = ended_processes(now)
    own = [
        each
        for each in ended
        if each.state is not RunState.DONE and each.reason_code is not ReasonCode.PEER_ENDED
    ]
    peers = {each.peer for each in ended}
    named = [each for each in now.observed.processes if each.host in peers]
    return min(own or named or ended, key=lambda each: each.ended_at, default=None)


def seconds_without_output(processes: Sequence[ProcessStatus], limits: Limits) -> float | None:
    """Return the seconds since the last output of any process; None if within the limit.

    The newest output of all processes counts, since in many trainers only one process writes.
    """
    ages = [each.output_age for each in processes]
    known = [age for age in ages if age is not None]
    is_asked = limits.output and not any(each.has_heartbeat for each in processes)
    if not is_asked or not known or len(known) < len(ages):
        return None
    return min(known) if min(known) > limits.output else None


def _with_delays(now: Situation, action: Action, state: RunState, cause: Cause) -> Decision:
    """Decide to take an action: at once the first time, then with growing delays."""
    memory = now.memory
    if now.now < memory.not_before:
        return now.stay(state, cause, wait_for(now, action))
    next_try = now.now + now.limits.backoff(memory.tries)
    memory = replace(memory, tries=memory.tries + 1, not_before=next_try)
    return now.remembering(memory).act(action, state, cause)


def _restart(now: Situation, state: RunState, cause: Cause) -> Decision:
    """Decide to restart a run that hangs: at once, then with growing delays while it hangs.

    A hang counts as a crash.
    """
    memory = _with_crash(now)
    if memory.counted_attempt != now.memory.counted_attempt:
        memory = replace(memory, not_before=0.0)
        return _within_budget(now.remembering(memory), Action.RESTART, state, cause)
    return _with_delays(now, Action.RESTART, state, cause)


def _launch_after_crash(now: Situation, cause: Cause) -> Decision:
    """Decide to relaunch a crashed run, or to give up after too many crashes."""
    now = now.remembering(_with_crash(now))
    return _within_budget(now, Action.LAUNCH, RunState.FAILED, cause)


def _with_crash(now: Situation) -> Memory:
    """Return the memory with one more crash, at most one per attempt."""
    memory, attempt = now.memory, now.record.attempt
    if memory.counted_attempt == attempt:
        return memory
    first = first_ended(now)
    bad = first.host if first and first.state is not RunState.DONE else ""
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
        return now.stay(state, cause, wait_for(now, action))
    return now.act(action, state, cause)


def _is_one_bad_worker(now: Situation) -> bool:
    """Return whether one of several workers has been the first to fail too many times."""
    often = now.limits.same_worker and now.memory.bad_times > now.limits.same_worker
    return bool(often and now.memory.bad_worker and len(now.observed.processes) > 1)


def _failed_first(memory: Memory) -> Cause:
    return Cause.of(CauseCode.WORKER_FAILED_FIRST, host=memory.bad_worker, count=memory.bad_times)


def _replace_bad_worker(now: Situation, counted: Decision, cause: Cause) -> Decision:
    """Return the decision to replace the TPU if ``counted`` gives up because of one bad worker.

    ``counted`` is the decision after counting crashes. It is returned in all other cases, and if
    the TPU can't be replaced.
    """
    now = now.remembering(counted.memory)
    if counted.action is not Action.GIVE_UP or not _is_one_bad_worker(now):
        return counted
    if now.limits.crashes and now.memory.crashes > now.limits.crashes:
        return counted
    now = now.remembering(replace(now.memory, not_before=0.0))
    better = replace_tpu(now, RunState.FAILED, _failed_first(now.memory), cause)
    return counted if better.action is Action.NOTHING else better


def is_unreachable(process: ProcessStatus) -> bool:
    """Return whether the state of a process is unknown, since its worker did not report it."""
    return process.state in (RunState.UNREACHABLE, RunState.UNKNOWN)


def decide_lost(now: Situation) -> Decision:
    """Decide about a run whose TPU is lost: recreate the TPU, with growing delays, or give up.

    Do nothing until the API has confirmed the loss.
    """
    observed, memory, limits = now.observed, now.memory, now.limits
    lost = Cause.of(CauseCode.TPU_STATE, tpu_state=observed.tpu_state)
    if not observed.is_confirmed:
        return now.stay(RunState.PREEMPTION_SUSPECTED, lost, Cause(CauseCode.CONFIRMING))
    if blocker := creation_blocker(observed):
        return now.stay(RunState.PREEMPTED, lost, blocker)
    if memory.state != RunState.PREEMPTED:
        memory = replace(memory.without_wait(), preemptions=memory.preemptions + 1)
        now = now.remembering(memory)
    if limits.preemptions and memory.preemptions > limits.preemptions:
        too_many = Cause.of(CauseCode.TOO_MANY_PREEMPTIONS, count=memory.preemptions)
        return now.give_up(lost, too_many)
    return _with_delays(now, Action.RECREATE, RunState.PREEMPTED, lost)


def decide_unreachable(now: Situation) -> Decision:
    """Decide about a run with unreachable workers.

    Wait ``limits.unreachable`` seconds; then replace the TPU unless the run continues on the other
    workers.
    """
    observed = now.observed
    hosts = ", ".join(each.host for each in observed.processes if is_unreachable(each))
    seconds = now.seconds_in(RunState.UNREACHABLE)
    if seconds <= now.limits.unreachable:
        away = Cause.of(CauseCode.WORKERS_UNREACHABLE, hosts=hosts)
        return now.stay(RunState.UNREACHABLE, away)
    away = Cause.of(CauseCode.WORKERS_UNREACHABLE_FOR, hosts=hosts, seconds=seconds)
    here = [each for each in observed.processes if not is_unreachable(each)]
    all_active = bool(here) and all(each.is_active for each in here)
    if all_active and not now.late_heartbeats(here):
        continues = Cause.of(CauseCode.RUN_CONTINUES, host=here[0].host)
        return now.stay(RunState.UNREACHABLE, away, continues)
    if not observed.any_worker_answers:
        # This controller may have lost its own network connection while the run is healthy.
        return now.stay(RunState.UNREACHABLE, away, Cause(CauseCode.NO_WORKER_REACHABLE))
    if not observed.is_confirmed:
        return now.stay(RunState.UNREACHABLE, away, Cause(CauseCode.CONFIRMING))
    return replace_tpu(now, RunState.UNREACHABLE, away)


def replace_tpu(now: Situation, state: RunState, *causes: Cause) -> Decision:
    """Decide to delete an unusable TPU that is still READY, and to create it again.

    The deletion destroys the disks of the TPU's workers. Therefore the TPU is only replaced if the
    checkpoints are in a bucket and the budget of replacements is not used up.
    """
    memory, limits = now.memory, now.limits
    if not now.record.launch.checkpoints.startswith("gs://"):
        no_bucket = Cause.of(CauseCode.NO_BUCKET, delete=_delete_command(now.observed))
        return now.stay(state, *causes, no_bucket)
    if blocker := creation_blocker(now.observed, deletes=True):
        return now.stay(state, *causes, blocker)
    if memory.replacements >= limits.replacements:
        too_many = Cause.of(CauseCode.TOO_MANY_REPLACEMENTS, count=memory.replacements)
        return now.give_up(*causes, too_many)
    if now.now < memory.not_before:
        return now.stay(state, *causes, wait_for(now, Action.REPLACE))
    # In the state PREEMPTED, the loss of the deleted TPU does not count as a preemption, and the
    # time for which workers may be unreachable starts again.
    memory = replace(
        memory,
        state=RunState.PREEMPTED.value,
        since=now.now,
        replacements=memory.replacements + 1,
        not_before=now.now + limits.backoff(memory.replacements),
        bad_worker="",
        bad_times=0,
    )
    return Decision(Action.REPLACE, state, causes, memory, is_new=True)


def creation_blocker(observed: Observation, deletes: bool = False) -> Cause | None:
    """Return why the watch must not recreate a TPU; None if it may.

    ``deletes`` says that the TPU exists and is deleted first.
    """
    if not observed.can_be_created:
        return Cause(CauseCode.MULTISLICE)
    if (observed.tpus or deletes) and not observed.is_deletable:
        return Cause.of(CauseCode.NOT_OURS, delete=_delete_command(observed))
    return None


def wait_for(now: Situation, action: Action) -> Cause:
    """Return the cause that shows how many seconds remain until this action is tried."""
    code = CauseCode.RECREATE_IN if action in RECREATIONS else CauseCode.LAUNCH_IN
    return Cause.of(code, seconds=now.memory.not_before - now.now)


def _delete_command(observed: Observation) -> str:
    command = "ansible-playbook playbooks/delete.yml"
    tpu = observed.tpus[0] if observed.tpus else None
    return f"{command} -e tpu={tpu.name} -e zone={tpu.zone}" if tpu else command
