"""One pass of the watch: decide and act for each run, under a lease for each TPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud.errors import CloudError
from ...module_utils.worker.done_marker import DoneMarker
from ...module_utils.worker.run import overlap, runs_trainer
from ...module_utils.worker.run_state import RunState
from .actor import Actor
from .causes import Cause, CauseCode
from .decision import DESTRUCTIVE, LAUNCHES, Decision
from .event_kind import RECREATIONS, Action, DesiredState, EventKind
from .history import Event
from .lease import Claim, Lease, LeaseHeldError, Leases, lease_name
from .observation import DEAD, FOREIGN, READY, Observation, ObservedTpu
from .observe import SNAPSHOT_VALID_S, Snapshot
from .record import RunRecord
from .record_error import RecordConflictError, RecordError
from .release_cache import missing_cached_file
from .status import pass_text
from .wanted_time import TimeUse
from .watch_decision import decide
from .watch_log import WatchLog
from .watch_memory import Limits

if TYPE_CHECKING:
    from .store import RunStore, UnusableRecord

MAX_PARALLEL = 8
MAX_LISTINGS, LIST_AGAIN_S = 2, 1.0
NEEDS_DONE_CHECK = (*RECREATIONS, Action.LAUNCH, Action.GIVE_UP)
"""Actions before which a pass checks the done marker.

A run may be done although no pass observed its end: its TPU may have been lost right after the end.
"""


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a pass for one run.

    Args:
        run: the name of the run.
        state: the state of the run.
        causes: the causes of state and action.
        action: what the pass did.
        failed: whether the action failed, or no decision was possible.
        error: the error message.
    """

    run: str
    state: RunState
    causes: tuple[Cause, ...] = ()
    action: Action = Action.NOTHING
    failed: bool = False
    error: str = ""

    @property
    def text(self) -> str:
        """The outcome as one line for users."""
        action = "" if self.action is Action.NOTHING else self.action.value
        return f"run {self.run}: {pass_text(self.state, self.causes, action, self.error)}"

    def without_action(self, *causes: Cause) -> RunOutcome:
        """Return the outcome if the decided action is not carried out, because of ``causes``."""
        return replace(self, action=Action.NOTHING, causes=causes)

    def with_error(self, error: str) -> RunOutcome:
        """Return this outcome as failed with ``error``, or unchanged if ``error`` is empty."""
        return replace(self, failed=True, error=error, causes=()) if error else self


@dataclass(frozen=True)
class WatchPass:
    """One pass of the watch.

    Args:
        store: the run records.
        leases: the leases of TPUs.
        actor: runs the playbooks of an action.
        log: the watch's log.
        limits: how long to wait, and when to give up.
        list_tpus: lists the TPUs from the API. Raises CloudError.
        read_done: reads the done marker beside a run's checkpoints. Raises CloudError.
        check: whether to show decisions only, without acting.
        clock: returns unix seconds.
        sleep: waits for a number of seconds.
    """

    store: RunStore
    leases: Leases
    actor: Actor
    log: WatchLog
    limits: Limits
    list_tpus: Callable[[], Sequence[ObservedTpu]]
    read_done: Callable[[RunRecord], DoneMarker | None]
    check: bool = False
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def confirm(self, records: Iterable[RunRecord], snapshot: Snapshot) -> Snapshot:
        """List TPUs again while a wanted run seems to have lost its TPU or workers.

        Stops when two lists agree on the TPU's state, or after MAX_LISTINGS lists. A loss is not
        confirmed by the inventory alone, because the inventory may come from a cache. Returns
        ``snapshot`` with the new lists. Raises CloudError.
        """
        wanted_records = [record for record in records if record.is_wanted]
        for number in range(MAX_LISTINGS):
            if not any(_needs_confirmation(snapshot.of(record)) for record in wanted_records):
                break
            if number:
                self.sleep(LIST_AGAIN_S)
            snapshot = self._list_again(snapshot)
        return snapshot

    def act(self, records: Mapping[str, RunRecord], snapshot: Snapshot) -> list[RunOutcome]:
        """Decide and act for each run; return the outcomes. An error affects only its own run.

        ``records`` maps each run to its record. ``snapshot`` is what this pass has observed.
        """

        def act_on_tpu(group: Sequence[RunRecord]) -> list[RunOutcome]:
            # A run must wait if this pass has recreated its TPU for another run, or launched
            # another run on the same chips.
            outcomes: list[RunOutcome] = []
            for record in group:
                if cause := waiting_cause(record, outcomes, records):
                    outcomes.append(RunOutcome(record.run, RunState.WAITING_FOR_TPU, (cause,)))
                else:
                    outcomes.append(self._act_safely(record, snapshot))
            return outcomes

        with ThreadPoolExecutor(MAX_PARALLEL) as pool:
            outcomes_by_tpu = list(pool.map(act_on_tpu, by_tpu(records.values())))
        return sorted(
            (outcome for group in outcomes_by_tpu for outcome in group),
            key=lambda outcome: outcome.run,
        )

    def _act_safely(self, record: RunRecord, snapshot: Snapshot) -> RunOutcome:
        try:
            return self._act_on_run(record, snapshot)
        except Exception as error:  # an error of one run must not affect the others
            text = str(error) or repr(error)
            outcome = RunOutcome(record.run, RunState.UNKNOWN, failed=True, error=text)
            self.log(outcome.text)
            return outcome

    def _act_on_run(self, record: RunRecord, snapshot: Snapshot) -> RunOutcome:
        decision = decide(record, snapshot.of(record), self.clock(), self.limits)
        if decision.action in NEEDS_DONE_CHECK and self._is_done(record):
            marker = (Cause(CauseCode.DONE_MARKER),)
            done_fields = {"action": Action.RECORD_DONE, "state": RunState.DONE, "causes": marker}
            decision = replace(decision, **done_fields)
        outcome = RunOutcome(record.run, decision.state, decision.causes, decision.action)
        if decision.action in (*LAUNCHES, Action.GIVE_UP) and (
            missing := missing_cached_file(record.launch, self.actor.state_dir)
        ):
            # This controller's copy of the release or of the lock file is missing or damaged. Do
            # not change the record, so that a controller that has both can still launch the run
            # or give it up.
            cause = _release_missing(record, missing)
            return RunOutcome(record.run, RunState.WAITING_FOR_RELEASE, (cause,))
        if decision.action is Action.NOTHING:
            if decision.is_new:
                self.log(outcome.text)
            is_recovered = self._is_active_in_recovery(record, decision, snapshot)
            self._store_memory(
                record, decision, {}, Event(EventKind.FOUND_RUNNING) if is_recovered else None
            )
            return outcome
        if self.check:
            self.log(outcome.text)
            return outcome
        try:
            with self.leases.held(lease_name(record.launch.tpu)) as lease:
                return self._act_leased(record, decision, snapshot, lease, outcome)
        except LeaseHeldError as held:
            return outcome.without_action(Cause.of(CauseCode.LEASE_HELD, error=str(held)))

    def _is_done(self, record: RunRecord) -> bool:
        """Return whether a done marker exists for the recorded attempt. Raises CloudError."""
        marker = self.read_done(record)
        return marker is not None and marker.is_of(record.attempt, record.last_launch)

    def _act_leased(
        self,
        record: RunRecord,
        decision: Decision,
        snapshot: Snapshot,
        lease: Lease,
        outcome: RunOutcome,
    ) -> RunOutcome:
        if decision.action in DESTRUCTIVE and (outdated := self._outdated(record, snapshot)):
            return outcome.without_action(*outcome.causes, outdated)
        fence = max(lease.fence, record.fence + 1)
        new_states = {
            Action.GIVE_UP: {"wanted": DesiredState.STOPPED.value},
            Action.RECORD_DONE: {"wanted": DesiredState.DONE.value},
        }
        fields = new_states.get(decision.action, {}) | {"fence": fence}
        if not self._store_memory(record, decision, fields):
            return outcome.without_action(Cause(CauseCode.RECORD_CHANGED))
        self.log(outcome.text)
        claim = Claim(lease.lost, lambda: conflict_reason(self.store, record, fence))
        add_event = partial(self._add_event, record, snapshot, fence)
        act = partial(self.actor.act, record, fence=fence, claim=claim, add_event=add_event)
        error = act(snapshot.of(record), decision.action)
        if decision.action in RECREATIONS:
            return self._launch_recreated(record, snapshot, act, outcome, error)
        return outcome.with_error(error)

    def _launch_recreated(
        self,
        record: RunRecord,
        snapshot: Snapshot,
        act: Callable[[Observation, Action], str],
        outcome: RunOutcome,
        error: str,
    ) -> RunOutcome:
        """Launch the run on its recreated TPU; return the outcome.

        If the TPU is still being created, the next pass launches the run. ``act`` carries out an
        action on the run and returns an error message, "" if it succeeded. ``outcome`` and
        ``error`` are the outcome and the error message of the TPU's recreation.
        """
        observed = self._list_again(snapshot).of(record)
        if observed.tpu_state == READY and not error:
            # The observed processes ran on the TPU that was lost, because the inventory was read
            # before the TPU was recreated.
            new = replace(observed, processes=())
            error = act(new, Action.LAUNCH)
            return replace(outcome, causes=(Cause(CauseCode.TPU_RECREATED),)).with_error(error)
        if observed.tpu_state in (READY, FOREIGN, *DEAD):
            lost_again = Cause.of(CauseCode.TPU_STATE_AGAIN, tpu_state=observed.tpu_state)
            return replace(outcome, causes=(lost_again,), failed=True).with_error(error)
        state = Cause.of(CauseCode.TPU_STATE, tpu_state=observed.tpu_state)
        causes = (state, Cause(CauseCode.NEXT_PASS))
        return replace(outcome, state=RunState.WAITING_FOR_TPU, causes=causes)

    def _add_event(
        self, record: RunRecord, snapshot: Snapshot, fence: int, kind: EventKind
    ) -> None:
        """Record in the run's history that the setup of the workers has started or is done.

        Does nothing if the record's fencing number is not ``fence``. A failure is only logged,
        because only goodput needs the event.
        """
        try:
            stored = self.store.read(record.run)
            if stored is None or stored.fence != fence or stored.wanted != record.wanted:
                return
            created = 0.0
            if stored.phase is TimeUse.CAPACITY:
                tpus = self._list_again(snapshot).of(record).tpus
                created = max((tpu.created for tpu in tpus), default=0.0)
            self.store.change(record.run, stored.generation, {}, Event(kind, created=created))
        except (RecordError, CloudError) as error:
            self.log(f"run {record.run}: the event {kind} is not recorded: {error}")

    def _outdated(self, record: RunRecord, snapshot: Snapshot) -> Cause | None:
        """Return why a snapshot is too old for an action in DESTRUCTIVE; None if it is not."""
        age = self.clock() - snapshot.asked_at
        if age > SNAPSHOT_VALID_S:
            return Cause.of(CauseCode.ANSWERS_TOO_OLD, seconds=age)
        if self.clock() - snapshot.listed_at > SNAPSHOT_VALID_S:
            observed, current = snapshot.of(record), self._list_again(snapshot).of(record)
            if (current.tpu_state, _tpu_ids(current)) != (observed.tpu_state, _tpu_ids(observed)):
                return Cause.of(CauseCode.TPU_CHANGED, tpu_state=current.tpu_state)
        return None

    def _is_active_in_recovery(
        self, record: RunRecord, decision: Decision, snapshot: Snapshot
    ) -> bool:
        """Return whether a run is active although it is in recovery according to its record.

        This happens if the playbook of the recovery failed and the old attempt continued.
        """
        recovery_began = record.phase_since or 0.0
        is_active = decision.state is RunState.RUNNING and recovery_began < snapshot.asked_at
        if record.phase is None or not is_active:
            return False
        # Ask the API: workers may answer while their TPU is preempted, and a cached inventory may
        # still say READY.
        try:
            return self._outdated(record, snapshot) is None
        except CloudError:
            return False  # unknown, because the API did not answer; the next pass checks it again

    def _list_again(self, snapshot: Snapshot) -> Snapshot:
        listed_at = self.clock()
        return snapshot.with_listing(self.list_tpus(), listed_at)

    def _store_memory(
        self,
        record: RunRecord,
        decision: Decision,
        fields: Mapping[str, Any],
        event: Event | None = None,
    ) -> bool:
        """Store ``fields`` and the decision's memory for the next pass in the run record.

        Adds one event to the run's history: the decision if it is new, otherwise ``event``, if any.
        Returns False if the record was changed since it was read.
        """
        memory = decision.memory.fields()
        if self.check or (record.watch == memory and not fields and not event):
            return True
        if decision.is_new:
            action = "" if decision.action is Action.NOTHING else decision.action.value
            state, causes = decision.state, decision.causes
            event = Event(EventKind.WATCH, state=state, action=action, causes=causes)
        try:
            self.store.change(record.run, record.generation, {**fields, "watch": memory}, event)
        except RecordConflictError:
            return False
        return True


def conflict_reason(store: RunStore, record: RunRecord, fence: int) -> str:
    """Return why an action on a run must stop; empty if it may continue.

    It must stop if the stored record's fencing number is not ``fence``, or if its desired state is
    not that of ``record``, which was read before the action began.
    """
    try:
        stored = store.read(record.run)
    except RecordError as error:
        return str(error)
    if stored is None or stored.fence != fence:
        return "its record was changed by another action after this one began"
    if stored.wanted != record.wanted:
        return f"the run is {stored.wanted} now"
    return ""


def unusable_outcomes(records: Iterable[UnusableRecord]) -> list[RunOutcome]:
    """Return a failed outcome for each unusable record."""
    return [
        RunOutcome(
            ascii(record.name)[1:-1][:100], RunState.UNKNOWN, failed=True, error=record.error
        )
        for record in records
    ]


def by_tpu(records: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """Group runs by TPU; within a group, the run that became wanted last comes first."""
    groups: dict[str, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: (-(record.wanted_since or 0), record.run)):
        groups.setdefault(record.launch.tpu, []).append(record)
    return list(groups.values())


def waiting_cause(
    record: RunRecord, outcomes: Iterable[RunOutcome], records: Mapping[str, RunRecord]
) -> Cause | None:
    """Return why a wanted run waits for the next pass; None if it does not.

    A run waits if this pass has recreated its TPU or launched another run on its chips.
    ``outcomes`` are the outcomes of other runs on the same TPU in this pass. ``records`` maps each
    run to its record.
    """
    for outcome in outcomes if record.is_wanted else ():
        if outcome.action in RECREATIONS:
            return Cause.of(CauseCode.TPU_RECREATED_FOR, run=outcome.run)
        chips = records[outcome.run].launch.chip, record.launch.chip
        if outcome.action in (Action.LAUNCH, Action.RESTART) and overlap(*chips):
            return Cause.of(CauseCode.OTHER_RUN_LAUNCHED, run=outcome.run)
    return None


def _needs_confirmation(observed: Observation) -> bool:
    """Return whether the API must still confirm that a TPU is lost or has unreachable workers."""
    is_any_unreachable = any(process.is_unreachable for process in observed.processes)
    seems_lost = observed.tpu_state in DEAD or is_any_unreachable
    return seems_lost and not observed.is_confirmed


def _tpu_ids(observed: Observation) -> list[tuple[str, str]]:
    return [(tpu.zone, tpu.id) for tpu in observed.tpus]


def _release_missing(record: RunRecord, path: str) -> Cause:
    launch = record.launch
    options = [] if launch.config is None else [f"-e config=PATH/{launch.config_name}"]
    if not runs_trainer(launch.command):
        options.append("-e command='\"PROGRAM ARGUMENT …\"'")
    return Cause.of(CauseCode.RELEASE_MISSING, path=path, run=record.run, options=" ".join(options))
