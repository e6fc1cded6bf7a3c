"""One pass of the watch: decide for each run, and act, all runs of a TPU under one lease."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...module_utils.worker.run import overlap
from . import watch_decision as watch
from .actor import Actor, Claim
from .done_marker import DoneMarker
from .lease import Lease, LeaseHeldError, Leases
from .record import DesiredState, RunRecord
from .relaunch import missing_here
from .run_record import RecordConflictError, RecordError
from .store import RunStore, UnusableRecord
from .watch_log import WatchLog
from .watch_view import SeenTpu, view

AT_ONCE = 8
ASK_AT_MOST, ASK_AGAIN_S = 2, 1.0
LOOK_HOLDS_S = 90.0
"""A destructive action needs an observation of the run that is not older than this."""
BEGINS_AGAIN = (watch.RECREATE, watch.REPLACE, watch.LAUNCH, watch.GIVE_UP)
"""Actions that are wrong for a run that is done: its worker may be gone before a pass sees it."""
NO_RELEASE = "waiting for a controller that has the release"


@dataclass(frozen=True)
class Look:
    """What a pass observes.

    Args:
        hosts: the inventory's variables of each host.
        answers: run_info's answer of each host.
        listings: the TPUs in the inventory, then in each answer of the API.
        looked_at: when the first worker was asked. Times are unix seconds.
        listed_at: when the API was asked last; 0 for the inventory, which may come from a cache.
    """

    hosts: Mapping[str, Mapping[str, Any]]
    answers: Mapping[str, Mapping[str, Any]]
    listings: tuple[tuple[SeenTpu, ...], ...]
    looked_at: float
    listed_at: float = 0.0

    def seen(self, record: RunRecord) -> watch.Seen:
        """Return what is seen of one run."""
        return view(record, self.hosts, self.answers, self.listings)

    def with_listing(self, listed: Sequence[SeenTpu], at: float) -> Look:
        """Return the same with a newer answer of the API."""
        return replace(self, listings=(*self.listings, tuple(listed)), listed_at=at)


@dataclass(frozen=True)
class Outcome:
    """What a pass saw of a run and did."""

    run: str
    state: str
    why: str = ""
    action: str = watch.NOTHING
    failed: bool = False

    def line(self) -> str:
        """Return it as a line for people."""
        did = "" if self.action == watch.NOTHING else f": {self.action}"
        return f"run {self.run}: {self.state}{f': {self.why}' if self.why else ''}{did}"

    def did_nothing(self, why: str) -> Outcome:
        """Return the same where the action was not taken."""
        return replace(self, action=watch.NOTHING, why=why)


@dataclass(frozen=True)
class WatchPass:
    """Everything that a pass needs to act.

    Args:
        store: the run records.
        leases: the leases beside them.
        actor: runs the playbooks.
        log: the watch's log.
        limits: when to give up, and how long to wait.
        kept: this controller's state directory.
        list_tpus: asks the API for the TPUs. Raises TpuApiError.
        read_done: reads the done marker beside a run's checkpoints. Raises TpuApiError.
        check: decide and show, but change nothing.
        clock: unix time, seconds.
        sleep: waits for seconds.
    """

    store: RunStore
    leases: Leases
    actor: Actor
    log: WatchLog
    limits: watch.Limits
    kept: Path
    list_tpus: Callable[[], Sequence[SeenTpu]]
    read_done: Callable[[RunRecord], DoneMarker | None]
    check: bool = False
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def confirm(self, records: Iterable[RunRecord], look: Look) -> Look:
        """Ask the API itself about TPUs that seem lost, until two answers have the same state.

        The inventory may have been read before the TPU was lost. Raises TpuApiError.
        """
        wanted = [each for each in records if each.wanted == DesiredState.RUNNING]
        for asked in range(ASK_AT_MOST):
            if not any(_is_unsure(look.seen(record)) for record in wanted):
                break
            if asked:
                self.sleep(ASK_AGAIN_S)
            look = self._listed_again(look)
        return look

    def act(self, records: Mapping[str, RunRecord], look: Look) -> list[Outcome]:
        """Decide and act for each run. One that fails leaves the others alone."""

        def on_one_tpu(group: Sequence[RunRecord]) -> list[Outcome]:
            # A run must not repeat what the one before did to their TPU, nor take its chips.
            outcomes: list[Outcome] = []
            for record in group:
                if why := waits_for(record, outcomes, records):
                    outcomes.append(Outcome(record.run, "waiting", why))
                else:
                    outcomes.append(self._safely(record, look))
            return outcomes

        with ThreadPoolExecutor(AT_ONCE) as pool:
            told = list(pool.map(on_one_tpu, by_tpu(records.values())))
        return sorted((each for group in told for each in group), key=lambda each: each.run)

    def _safely(self, record: RunRecord, look: Look) -> Outcome:
        try:
            return self._one(record, look)
        except Exception as error:  # a mistake in one run's turn must not end the others'
            outcome = Outcome(record.run, "unknown", str(error) or repr(error), failed=True)
            self.log(outcome.line())
            return outcome

    def _one(self, record: RunRecord, look: Look) -> Outcome:
        seen = look.seen(record)
        decision = watch.decide(record, seen, self.clock(), self.limits)
        if decision.action in BEGINS_AGAIN and self._is_done(record):
            why = "its last attempt ended with 0 before its TPU was asked"
            decision = replace(decision, action=watch.RECORD_DONE, state="done", why=why)
        outcome = Outcome(record.run, decision.state, decision.why, decision.action)
        if decision.action in (*watch.LAUNCHES, watch.GIVE_UP) and (
            missing := missing_here(record.launch, self.kept)
        ):
            # Nothing is recorded: a controller that has the release decides by its own memory.
            return Outcome(record.run, NO_RELEASE, f"{missing} is missing. {_launch_here(record)}")
        if decision.action == watch.NOTHING:
            if decision.news:
                self.log(outcome.line())
            self._remember(record, decision, {}, outcome.line() if decision.news else "")
            return outcome
        if self.check:
            self.log(outcome.line())
            return outcome
        try:
            with self.leases.held(lease_name(record)) as lease:
                return self._act_leased(record, decision, look, lease, outcome)
        except LeaseHeldError as held:
            return outcome.did_nothing(str(held))

    def _is_done(self, record: RunRecord) -> bool:
        """Return whether the recorded attempt has left its done marker. Raises TpuApiError."""
        marker = self.read_done(record)
        return marker is not None and marker.attempt == record.attempt

    def _act_leased(
        self,
        record: RunRecord,
        decision: watch.Decision,
        look: Look,
        lease: Lease,
        outcome: Outcome,
    ) -> Outcome:
        seen = look.seen(record)
        if decision.action in watch.DESTRUCTIVE and (why := self._is_outdated(record, seen, look)):
            return outcome.did_nothing(f"{outcome.why}; {why}")
        fence = max(lease.fence, record.fence + 1)
        fields = {
            watch.GIVE_UP: {"wanted": "stopped", "given_up": decision.why},
            watch.RECORD_DONE: {"wanted": "done"},
        }.get(decision.action, {}) | {"fence": fence}
        if not self._remember(record, decision, fields, outcome.line()):
            return outcome.did_nothing("its record has just changed")
        self.log(outcome.line())
        claim = Claim(lease.lost, lambda: changed_since(self.store, record, fence))
        why = self.actor.act(record, seen, decision.action, fence, claim)
        if decision.action in (watch.RECREATE, watch.REPLACE):
            return self._launch_recreated(record, look, fence, claim, replace(outcome, why=why))
        return replace(outcome, why=why or outcome.why, failed=bool(why))

    def _launch_recreated(
        self, record: RunRecord, look: Look, fence: int, claim: Claim, outcome: Outcome
    ) -> Outcome:
        """Launch on a TPU that is READY again. One that is on its way is the next pass's."""
        seen = self._listed_again(look).seen(record)
        if seen.node == watch.READY and not outcome.why:
            # The inventory was read before this TPU existed, so none of its workers is known.
            new = replace(seen, parts=())
            why = self.actor.act(record, new, watch.LAUNCH, fence, claim)
            return replace(outcome, why=why or "its TPU was recreated", failed=bool(why))
        if seen.node in (watch.READY, watch.FOREIGN, *watch.DEAD):
            return replace(outcome, failed=True, why=outcome.why or f"its TPU is {seen.node} again")
        why = f"its TPU is {seen.node}, the next pass continues"
        return replace(outcome, state="waiting for its TPU", why=why)

    def _is_outdated(self, record: RunRecord, seen: watch.Seen, look: Look) -> str:
        """Say why an observation is no ground for a destructive action; empty if it is one."""
        age = self.clock() - look.looked_at
        if age > LOOK_HOLDS_S:
            return f"its workers were asked {age:.0f} s ago, the next pass asks them again"
        if self.clock() - look.listed_at > LOOK_HOLDS_S:
            now = self._listed_again(look).seen(record)
            if (now.node, _ids(now)) != (seen.node, _ids(seen)):
                return f"its TPU is {now.node} by now, the next pass looks again"
        return ""

    def _listed_again(self, look: Look) -> Look:
        at = self.clock()
        return look.with_listing(self.list_tpus(), at)

    def _remember(
        self,
        record: RunRecord,
        decision: watch.Decision,
        fields: Mapping[str, Any],
        event: str,
    ) -> bool:
        """Record what the watch knows of a run; False if somebody else changed the record."""
        kept = decision.kept()
        if self.check or (record.watch == kept and not fields):
            return True
        try:
            self.store.change(record.run, record.generation, {**fields, "watch": kept}, event)
        except RecordConflictError:
            return False
        return True


def changed_since(store: RunStore, record: RunRecord, fence: int) -> str:
    """Say why a run may no longer be acted on under this fence; empty if it may."""
    try:
        there = store.read(record.run)
    except RecordError as error:
        return str(error)
    if there is None or there.fence != fence:
        return "somebody else has acted on the run meanwhile"
    if there.wanted != record.wanted:
        return f"the run is {there.wanted} now"
    return ""


def unusable_outcomes(records: Iterable[UnusableRecord]) -> list[Outcome]:
    """Return a failed outcome for each record that was skipped."""
    return [
        Outcome(ascii(each.name)[1:-1][:100], "invalid record", each.why, failed=True)
        for each in records
    ]


def by_tpu(records: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """Group runs by their TPU, in each group the one that was launched last first."""
    groups: dict[str, list[RunRecord]] = {}
    for record in sorted(records, key=lambda each: (-(each.wanted_since or 0), each.run)):
        groups.setdefault(lease_name(record), []).append(record)
    return list(groups.values())


def lease_name(record: RunRecord) -> str:
    """Return the name of the lease on a run's TPU and all its runs."""
    return lease_of_tpu(record.launch.tpu)


def lease_of_tpu(name: str) -> str:
    """Return the name of the lease on a TPU and its runs."""
    return f"runs-of-{name}"


def waits_for(
    record: RunRecord, outcomes: Iterable[Outcome], records: Mapping[str, RunRecord]
) -> str:
    """Say why a wanted run waits after what this pass did for others of its TPU; empty if not."""
    for each in outcomes if record.wanted == DesiredState.RUNNING else ():
        if each.action in (watch.RECREATE, watch.REPLACE):
            return f"its TPU is recreated for run {each.run}"
        chips = records[each.run].launch.chip, record.launch.chip
        if each.action in (watch.LAUNCH, watch.RESTART) and overlap(*chips):
            return f"run {each.run} is launched there"
    return ""


def _is_unsure(seen: watch.Seen) -> bool:
    """Return whether a TPU seems lost or a worker is away, and the API has not confirmed it."""
    lost = seen.node in watch.DEAD or any(part.active is None for part in seen.parts)
    return seen.is_identified and lost and not seen.asked_twice


def _ids(seen: watch.Seen) -> list[tuple[str, str]]:
    return [(tpu.zone, tpu.id) for tpu in seen.tpus]


def _launch_here(record: RunRecord) -> str:
    return (
        "Launch the run from this controller once: ansible-playbook train.yml "
        f"-e run={record.run} -e config={record.launch.config_name}"
    )
