"""What a pass of the watch does for one run: from its desired and its observed state to one action.

Pure: no clock, no network. Everything that must be remembered from pass to pass is in the record's
``watch`` (Memory), so a pass may be killed at any point and the next one, on any controller,
continues from the state that it finds.
"""

from __future__ import annotations

from ...module_utils.worker.run_state import RunState
from .causes import Cause, CauseCode
from .decision import Action, Decision, Situation
from .observation import DEAD, FOREIGN, READY, Observation
from .record import DesiredState, RunRecord
from .watch_memory import Limits, Memory
from .watch_processes import decide_active, decide_ended, decide_partly_ended
from .watch_tpus import decide_lost, decide_unreachable, is_unreachable


def decide(
    record: RunRecord, observed: Observation, now: float, limits: Limits | None = None
) -> Decision:
    """Decide what to do next for a run. The same record and observation give the same decision."""
    best = max((each.step or 0 for each in observed.processes), default=0)
    is_active = any(each.is_active for each in observed.processes)
    memory = Memory.of(record.watch).with_step(best, is_active)
    now_situation = Situation(record, observed, memory, now, limits or Limits())
    if record.wanted is DesiredState.RUNNING:
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
    if observed.tpu_state in DEAD:
        return decide_lost(now)
    if now.memory.state == RunState.PREEMPTED:
        # The waits between attempts to create the TPU do not delay the launch on it.
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
