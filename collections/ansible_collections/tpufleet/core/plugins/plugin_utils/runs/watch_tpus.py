"""Decisions of the watch about a TPU that is lost or whose workers are unreachable."""

from __future__ import annotations

from dataclasses import replace

from ...module_utils.worker.run_state import RunState
from .causes import Cause, CauseCode
from .decision import Action, Decision, Situation
from .observation import Observation
from .process_status import ProcessStatus


def is_unreachable(process: ProcessStatus) -> bool:
    """Return whether a worker did not report its processes."""
    return process.state in (RunState.UNREACHABLE, RunState.UNKNOWN)


def decide_lost(now: Situation) -> Decision:
    """Recreate a TPU that the API confirmed as lost, ever more seldom, within the budget."""
    observed, memory, limits = now.observed, now.memory, now.limits
    lost = Cause.of(CauseCode.TPU_STATE, tpu_state=observed.tpu_state)
    if not observed.is_confirmed:
        confirming = Cause(CauseCode.CONFIRMING_PREEMPTION)
        return now.stay(RunState.PREEMPTION_SUSPECTED, lost, confirming)
    if blocker := creation_blocker(observed):
        return now.stay(RunState.PREEMPTED, lost, blocker)
    is_counted = memory.state == RunState.PREEMPTED
    if not is_counted:
        memory = replace(memory, preemptions=memory.preemptions + 1, tries=0)
    if limits.preemptions and memory.preemptions > limits.preemptions:
        too_many = Cause.of(CauseCode.TOO_MANY_PREEMPTIONS, count=memory.preemptions)
        return now.remembering(memory).give_up(lost, too_many)
    if is_counted and now.now < memory.not_before:
        return now.stay(RunState.PREEMPTED, lost, wait_for(now, CauseCode.RECREATE_IN))
    next_try = now.now + limits.backoff(memory.tries)
    memory = replace(memory, tries=memory.tries + 1, not_before=next_try)
    return now.remembering(memory).act(Action.RECREATE, RunState.PREEMPTED, lost)


def decide_unreachable(now: Situation) -> Decision:
    """Wait for workers that do not answer; replace their TPU if they stay away for too long."""
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
        # This controller may have lost its own network, and the run may be fine.
        return now.stay(RunState.UNREACHABLE, away, Cause(CauseCode.NO_WORKER_REACHABLE))
    if not observed.is_confirmed:
        return now.stay(RunState.UNREACHABLE, away, Cause(CauseCode.CONFIRMING))
    return replace_tpu(now, RunState.UNREACHABLE, away)


def replace_tpu(now: Situation, state: RunState, *causes: Cause) -> Decision:
    """Delete a TPU that is READY but not usable, and create it again.

    Its disks are lost with it, so only checkpoints in a bucket allow that.
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
        return now.stay(state, *causes, wait_for(now, CauseCode.RECREATE_IN))
    # The workers of the new TPU get the whole time again to become reachable.
    memory = replace(
        memory,
        state=RunState.REPLACED.value,
        since=now.now,
        replacements=memory.replacements + 1,
        not_before=now.now + limits.backoff(memory.replacements),
        bad_worker="",
        bad_times=0,
    )
    return Decision(Action.REPLACE, state, causes, memory, is_new=True)


def creation_blocker(observed: Observation, deletes: bool = False) -> Cause | None:
    """Return why a TPU cannot be recreated unattended; None if it can."""
    if not observed.can_be_created:
        return Cause(CauseCode.MULTISLICE)
    if (observed.tpus or deletes) and not observed.is_deletable:
        return Cause.of(CauseCode.NOT_OURS, delete=_delete_command(observed))
    return None


def wait_for(now: Situation, code: CauseCode) -> Cause:
    """Return the cause that the next try is not due yet."""
    return Cause.of(code, seconds=now.memory.not_before - now.now)


def _delete_command(observed: Observation) -> str:
    command = "ansible-playbook playbooks/delete.yml"
    tpu = observed.tpus[0] if observed.tpus else None
    return f"{command} -e tpu={tpu.name} -e zone={tpu.zone}" if tpu else command
