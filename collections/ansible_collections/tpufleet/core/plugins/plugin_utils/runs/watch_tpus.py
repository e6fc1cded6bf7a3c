"""The watch's decisions about TPUs: recreate a lost one, replace one with a bad worker."""

from __future__ import annotations

from dataclasses import replace

from ...module_utils.worker.run_state import RunState
from .causes import Cause, CauseCode
from .decision import Decision, Situation
from .event_kind import Action
from .observation import Observation
from .wanted_time import TimeUse


def decide_lost(situation: Situation) -> Decision:
    """Decide about a run whose TPU is lost: recreate the TPU, with growing delays, or give up.

    Do nothing until the API has confirmed the loss.
    """
    observed, memory, limits = situation.observed, situation.memory, situation.limits
    lost = Cause.of(CauseCode.TPU_STATE, tpu_state=observed.tpu_state)
    if not observed.is_confirmed:
        return situation.stay(RunState.PREEMPTION_SUSPECTED, lost, Cause(CauseCode.CONFIRMING))
    # The new TPU will have other workers, so forget the bad worker of the lost TPU.
    memory = replace(memory, bad_worker="", bad_times=0)
    situation = situation.with_memory(memory)
    if blocker := _creation_blocker(observed):
        return situation.stay(RunState.PREEMPTED, lost, blocker)
    # In the phase CAPACITY, the cloud has not created the TPU again since the last loss, so do not
    # count another preemption.
    is_counted = memory.state == RunState.PREEMPTED or situation.record.phase is TimeUse.CAPACITY
    if not is_counted:
        memory = replace(memory.without_wait(), preemptions=memory.preemptions + 1)
        situation = situation.with_memory(memory)
    if limits.preemptions and memory.preemptions > limits.preemptions:
        too_many = Cause.of(CauseCode.TOO_MANY_PREEMPTIONS, count=memory.preemptions)
        return situation.give_up(lost, too_many)
    return situation.act_with_delays(Action.RECREATE, RunState.PREEMPTED, lost)


def workers_in_use(observed: Observation) -> tuple[RunState, Cause] | None:
    """Return why a run must wait for its workers, as state and cause; None if it need not wait.

    A run must wait while its TPU is in maintenance, or while a worker has another run.
    """
    if observed.health == "UNHEALTHY_MAINTENANCE":
        return RunState.MAINTENANCE, Cause(CauseCode.TPU_IN_MAINTENANCE)
    if busy := next((process for process in observed.processes if process.other_run), None):
        other = Cause.of(CauseCode.OTHER_RUN, run=busy.other_run, host=busy.host)
        return RunState.WAITING_FOR_WORKERS, other
    return None


def decide_unreachable(situation: Situation) -> Decision:
    """Decide about a run with unreachable workers.

    Wait ``limits.unreachable`` seconds, then replace the TPU. Keep it if the run continues on the
    reachable workers, or if no worker of any TPU answers, since this controller may be offline.
    """
    observed = situation.observed
    hosts = ", ".join(process.host for process in observed.processes if process.is_unreachable)
    seconds = situation.seconds_in(RunState.UNREACHABLE)
    if seconds <= situation.limits.unreachable:
        unreachable = Cause.of(CauseCode.WORKERS_UNREACHABLE, hosts=hosts)
        return situation.stay(RunState.UNREACHABLE, unreachable)
    unreachable = Cause.of(CauseCode.WORKERS_UNREACHABLE_FOR, hosts=hosts, seconds=seconds)
    reachable = [process for process in observed.processes if not process.is_unreachable]
    all_active = bool(reachable) and all(process.is_active for process in reachable)
    if all_active and not situation.late_heartbeats(reachable):
        continues = Cause.of(CauseCode.RUN_CONTINUES, host=reachable[0].host)
        return situation.stay(RunState.UNREACHABLE, unreachable, continues)
    if not observed.any_worker_answers:
        # No worker of any TPU answers, so this controller may be offline and the run healthy.
        return situation.stay(
            RunState.UNREACHABLE, unreachable, Cause(CauseCode.NO_WORKER_REACHABLE)
        )
    if not observed.is_confirmed:
        return situation.stay(RunState.UNREACHABLE, unreachable, Cause(CauseCode.CONFIRMING))
    if in_use := workers_in_use(observed):
        _, reason = in_use
        # Stay UNREACHABLE: the time in this state counts for ``limits.unreachable``.
        return situation.stay(RunState.UNREACHABLE, unreachable, reason)
    return _replace_tpu(situation, RunState.UNREACHABLE, unreachable)


def replace_bad_worker(situation: Situation, cause: Cause) -> Decision:
    """Decide to replace the TPU of a bad worker, or to give up if the watch must not replace it.

    A worker is bad if, in more than ``limits.same_worker`` attempts in a row, it failed first.
    """
    memory = situation.memory
    causes = (
        Cause.of(CauseCode.WORKER_FAILED_FIRST, host=memory.bad_worker, count=memory.bad_times),
        cause,
    )
    without_delay = situation.with_memory(replace(memory, not_before=0.0))
    decision = _replace_tpu(without_delay, RunState.FAILED, *causes)
    if decision.action is not Action.NOTHING:
        return decision
    if _has_bucket(situation):
        by_hand = Cause(CauseCode.REPLACE_BY_HAND)
    else:
        by_hand = Cause.of(CauseCode.COPY_CHECKPOINTS, run=situation.record.run)
    return situation.give_up(*causes, by_hand)


def _replace_tpu(situation: Situation, state: RunState, *causes: Cause) -> Decision:
    """Decide to delete a READY TPU with an unreachable or bad worker, and to create it again.

    The deletion destroys the disks of the TPU's workers, so the checkpoints must be in a bucket.
    ``limits.replacements`` says how often this may happen.
    """
    memory, limits = situation.memory, situation.limits
    if not _has_bucket(situation):
        no_bucket = Cause.of(CauseCode.NO_BUCKET, delete=_delete_command(situation.observed))
        return situation.stay(state, *causes, no_bucket)
    if blocker := _creation_blocker(situation.observed, deletes=True):
        return situation.stay(state, *causes, blocker)
    if memory.replacements >= limits.replacements:
        too_many = Cause.of(CauseCode.TOO_MANY_REPLACEMENTS, count=memory.replacements)
        return situation.give_up(*causes, too_many)
    if delay := situation.delay(Action.REPLACE):
        return situation.stay(state, *causes, delay)
    # Set the state PREEMPTED now, so that decide_lost does not count this deletion as a preemption.
    # Leaving UNREACHABLE also restarts the time limit for unreachable workers.
    memory = replace(
        memory,
        state=RunState.PREEMPTED.value,
        since=situation.now,
        replacements=memory.replacements + 1,
        not_before=situation.now + limits.backoff(memory.replacements),
        bad_worker="",
        bad_times=0,
    )
    return Decision(Action.REPLACE, state, causes, memory, is_new=True)


def _creation_blocker(observed: Observation, deletes: bool = False) -> Cause | None:
    """Return why the watch must not recreate a TPU; None if it may.

    ``deletes`` says whether an existing TPU would be deleted first.
    """
    if not observed.can_be_created:
        return Cause(CauseCode.MULTISLICE)
    if (observed.tpus or deletes) and not observed.is_deletable:
        return Cause.of(CauseCode.NOT_OURS, delete=_delete_command(observed))
    return None


def _has_bucket(situation: Situation) -> bool:
    """Return whether the checkpoints are in a bucket, so that they outlive the TPU."""
    return situation.record.launch.checkpoints.startswith("gs://")


def _delete_command(observed: Observation) -> str:
    command = "ansible-playbook playbooks/delete.yml"
    tpu = observed.tpus[0] if observed.tpus else None
    return f"{command} -e tpu={tpu.name} -e zone={tpu.zone}" if tpu else command
