"""Upkeep at the end of a watch pass: deletes idle TPUs and old cached releases."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud.errors import CloudError
from ...module_utils.worker.node_identity import NodeIdentity
from ..fleet.spec import FleetEntry, parse_fleet
from .event_kind import DesiredState
from .lease import Claim, LeaseHeldError, lease_of_tpu
from .observation import READY, ObservedTpu
from .observe import SNAPSHOT_VALID_S, Snapshot, reported_runs
from .record_error import RecordConflictError, RecordError
from .release_cache import RELEASES

if TYPE_CHECKING:
    from .record import RunRecord
    from .record_store import RecordStore
    from .store import Records
    from .watch_pass import WatchPass


@dataclass(frozen=True)
class UpkeepOutcome:
    """The result of the upkeep: the names of the deleted TPUs, and the text of all errors."""

    deleted: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True)
class Upkeep:
    """Deletes idle TPUs and cached releases that no run needs.

    Args:
        watch: the watch pass that this upkeep belongs to.
        idle: a store with one document for each TPU, which says since when the TPU is idle.
    """

    watch: WatchPass
    idle: RecordStore

    def run(self, fleet: object, snapshot: Snapshot, records: Records) -> UpkeepOutcome:
        """Delete idle TPUs and old cached releases, and archive old records.

        Nothing is deleted while a record is invalid, since its run may need any TPU or release.
        ``fleet`` is the value of ``tpu_fleet``.
        """
        if records.unusable:
            self.watch.log("invalid records: no idle TPU and no cached release is deleted")
            return UpkeepOutcome()
        deleted: list[str] = []
        errors: list[str] = []
        try:
            for name, why in self.delete_idle(fleet, snapshot, records.usable):
                if why:
                    errors.append(why)
                else:
                    deleted.append(name)
            if not self.watch.check:
                now, store = self.watch.clock(), self.watch.store
                prune(self.watch.actor.kept / RELEASES, store.read_all(), now)
                store.archive_finished(records.usable.values(), now)
        except (RecordError, CloudError, OSError) as error:
            errors.append(str(error))
        return UpkeepOutcome(deleted, "; ".join(errors))

    def delete_idle(
        self, fleet: object, snapshot: Snapshot, records: Mapping[str, RunRecord]
    ) -> Iterator[tuple[str, str]]:
        """Delete the TPUs that were idle for ``idle_delete_after`` seconds.

        Yields the name and the error of each; the error is empty if the TPU was deleted.

        Only TPUs of the fleet file with an id and this fleet's label are deleted. Raises
        RecordError, and CloudError if ``fleet`` (the value of ``tpu_fleet``) is invalid.
        """
        for tpu in parse_fleet(fleet or []):
            seen = owned_tpu(tpu, snapshot)
            if tpu.idle_delete_after is None or seen is None:
                continue
            used = in_use(seen, snapshot, records.values())
            if not self._is_idle(seen, tpu.idle_delete_after, used):
                continue
            error = "" if self.watch.check else self._delete(seen, snapshot)
            if error is not None:
                yield seen.name, error

    def _is_idle(self, tpu: ObservedTpu, allowed: int, used: bool) -> bool:
        key = f"{tpu.name}_{tpu.zone}"
        kept, now = self.idle.read(key), self.watch.clock()
        since = idle_since(kept, tpu.id, used, now)
        if not self.watch.check and (kept.get("id"), kept.get("since")) != (tpu.id, since):
            with contextlib.suppress(RecordConflictError):
                fields = {"id": tpu.id, "since": since}
                self.idle.change(key, kept.get("generation", 0), fields, {})
        if not since or now - since < allowed:
            return False
        where, idle = f"TPU {tpu.name} ({tpu.zone})", f"{now - since:.0f} s"
        self.watch.log(f"{where}: idle for {idle}, {allowed} s are allowed: delete")
        return True

    def _delete(self, tpu: ObservedTpu, snapshot: Snapshot) -> str | None:
        """Delete a TPU; return "" on success, else the error, or None if it must stay for now."""
        node, where = NodeIdentity(tpu.name, tpu.zone, tpu.id), f"TPU {tpu.name} ({tpu.zone})"
        try:
            with self.watch.leases.held(lease_of_tpu(tpu.name)) as lease:
                # Checked here, not by the claim: an action that a claim stops counts as failed.
                if why := self._blocker(tpu, snapshot):
                    self.watch.log(f"{where}: not deleted: {why}")
                    return None
                error = self.watch.actor.delete(node, Claim(lease.lost, lambda: ""))
                return f"{where}: {error}" if error else ""
        except LeaseHeldError as held:
            self.watch.log(f"{where}: {held}")
            return None

    def _blocker(self, tpu: ObservedTpu, snapshot: Snapshot) -> str:
        """Return why a TPU must not be deleted now; empty if it may be deleted."""
        age = self.watch.clock() - snapshot.asked_at
        if age > SNAPSHOT_VALID_S:
            return f"its workers were asked {age:.0f} s ago, the next pass asks them again"
        try:
            records = self.watch.store.read_all()  # a run may have been launched meanwhile
        except RecordError as error:
            return str(error)
        if records.unusable:
            return "a run record is invalid, so its run may need this TPU"
        if in_use(tpu, snapshot, records.usable.values()):
            return "it is in use now"
        return ""


def owned_tpu(tpu: FleetEntry, snapshot: Snapshot) -> ObservedTpu | None:
    """Return the existing TPU for an entry of the fleet file; None if there is none or several."""
    found = [
        seen
        for seen in snapshot.listings[0]
        if seen.name == tpu.name and seen.zone in tpu.zones and seen.is_ours and seen.id
    ]
    return found[0] if len(found) == 1 else None


def prune(releases: Path, records: Records, now: float) -> list[str]:
    """Delete cached releases that no run needs, and return their names.

    Nothing is deleted while a record is unusable, since its run may need any release. ``releases``
    is the directory of the cached releases, ``now`` is in unix seconds.
    """
    if records.unusable:
        return []
    found: dict[str, float] = {}
    if releases.is_dir():
        found = {each.name: each.stat().st_mtime for each in releases.iterdir() if each.is_dir()}
    gone = superfluous(found, records.usable.values(), now)
    for name in gone:
        shutil.rmtree(releases / name, ignore_errors=True)
    return gone


KEPT_RELEASES = 5
"""How many cached releases to keep although no run needs them: the newest ones."""
YOUNG_SECONDS = 86400
"""Releases younger than this are not deleted: their launch may not have written a record yet."""


def in_use(tpu: ObservedTpu, snapshot: Snapshot, records: Iterable[RunRecord]) -> bool:
    """Return whether a TPU is or may be in use.

    A TPU is in use if a run is wanted on it, or if a worker has an active run or a process that
    holds the TPU device. It may be in use if the inventory does not list all its workers, or if the
    answer of a worker is incomplete. ``records`` are the records of all runs.
    """
    if any(each.is_wanted and is_on(each, tpu) for each in records):
        return True
    mine = [
        host
        for host, facts in snapshot.hosts.items()
        if (facts.get("tpu_zone"), facts.get("tpu_id")) == (tpu.zone, tpu.id)
    ]
    if tpu.state != READY or len(mine) < tpu.workers:
        return True
    return any(is_busy(snapshot.answers.get(host) or {}) for host in mine)


def is_on(record: RunRecord, tpu: ObservedTpu) -> bool:
    """Return whether a run's record names this TPU, by name or by zone and id."""
    names = {record.launch.tpu, *(node.name for node in record.launch.nodes)}
    return tpu.name in names or any(
        (node.zone, node.id) == (tpu.zone, tpu.id) for node in record.launch.nodes
    )


def is_busy(answer: Mapping[str, Any]) -> bool:
    """Return whether a worker has an active run, or a process that holds the TPU device.

    ``answer`` is the result of run_info. Returns True if it is incomplete or invalid.
    """
    runs, holders = reported_runs(answer), answer.get("holders")
    if runs is None or not isinstance(holders, list):
        return True
    return bool(holders) or any(each["active"] for each in runs)


def idle_since(memory: Mapping[str, Any], node_id: str, used: bool, now: float) -> float:
    """Return since when a TPU is idle, in unix seconds; 0 while it is in use.

    Args:
        memory: the document about the TPU that the previous pass stored.
        node_id: the TPU's id. If it differs from the one in ``memory``, the TPU was recreated, and
            the idle time starts at ``now``.
        used: whether the TPU is in use now.
        now: unix seconds.
    """
    if used:
        return 0.0
    since = memory.get("since")
    same = memory.get("id") == node_id and isinstance(since, (int, float)) and since > 0
    return float(since) if same and since <= now else now


def superfluous(kept: Mapping[str, float], records: Iterable[RunRecord], now: float) -> list[str]:
    """Return the names of the cached releases to delete.

    ``kept`` maps each cached release to its modification time in unix seconds. A release that a
    record names is kept until its run is done.
    """
    needed = {each.launch.release for each in records if each.wanted is not DesiredState.DONE}
    free = sorted((name for name in kept if name not in needed), key=lambda name: -kept[name])
    return sorted(name for name in free[KEPT_RELEASES:] if now - kept[name] > YOUNG_SECONDS)
