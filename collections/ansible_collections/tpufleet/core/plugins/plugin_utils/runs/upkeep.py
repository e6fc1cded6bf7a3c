"""Upkeep at the end of a watch pass: deletes idle TPUs and old cached releases."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud.errors import CloudError
from ...module_utils.worker.node_identity import NodeIdentity
from ..fleet.spec import FleetEntry, parse_fleet
from .causes import Cause, CauseCode
from .event_kind import DesiredState
from .lease import Claim, LeaseHeldError, lease_name
from .observation import READY, ObservedTpu
from .observe import SNAPSHOT_VALID_S, Snapshot, reported_runs
from .record_error import RecordConflictError, RecordError
from .release_cache import RELEASES
from .status import cause_text

if TYPE_CHECKING:
    from .record import RunRecord
    from .record_store import RecordStore
    from .store import Records
    from .watch_pass import WatchPass

RETAINED_RELEASES = 5
"""How many cached releases to keep although no run needs them: the newest ones."""
YOUNG_SECONDS = 86400
"""Releases younger than this are not deleted: their launch may not have written a record yet."""


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
            self.watch.log("a run record is invalid: no idle TPU and no cached release is deleted")
            return UpkeepOutcome()
        deleted: list[str] = []
        errors: list[str] = []
        try:
            for name, delete_error in self.delete_idle(fleet, snapshot, records.usable):
                if delete_error:
                    errors.append(delete_error)
                else:
                    deleted.append(name)
            if not self.watch.check:
                now, store = self.watch.clock(), self.watch.store
                releases, everything = self.watch.actor.state_dir / RELEASES, store.read_all()
                prune(releases, everything, now, lambda: store.read_all(archived=True))
                store.archive_finished(records.usable.values(), now)
        except (RecordError, CloudError, OSError) as error:
            errors.append(str(error))
        return UpkeepOutcome(deleted, "; ".join(errors))

    def delete_idle(
        self, fleet: object, snapshot: Snapshot, records: Mapping[str, RunRecord]
    ) -> Iterator[tuple[str, str]]:
        """Delete the TPUs that were idle for ``idle_delete_after`` seconds.

        Yields the name and the error of each TPU; the error is empty if the TPU was deleted.

        Only TPUs of the fleet file with an id and this fleet's label are deleted. Raises
        RecordError, and CloudError if ``fleet`` (the value of ``tpu_fleet``) is invalid.
        """
        for tpu in parse_fleet(fleet or []):
            observed = owned_tpu(tpu, snapshot)
            if tpu.idle_delete_after is None or observed is None:
                continue
            is_in_use = in_use(observed, snapshot, records.values())
            if not self._is_idle(observed, tpu.idle_delete_after, is_in_use):
                continue
            error = "" if self.watch.check else self._delete(observed, snapshot)
            if error is not None:
                yield observed.name, error

    def _is_idle(self, tpu: ObservedTpu, idle_limit_s: int, is_in_use: bool) -> bool:
        key = f"{tpu.name}_{tpu.zone}"
        document, now = self.idle.read(key), self.watch.clock()
        since = idle_since(document, tpu.id, is_in_use, now)
        if not self.watch.check and (document.get("id"), document.get("since")) != (tpu.id, since):
            with contextlib.suppress(RecordConflictError):
                fields = {"id": tpu.id, "since": since}
                self.idle.change(key, document.get("generation", 0), fields, {})
        if not since or now - since < idle_limit_s:
            return False
        label, idle = f"TPU {tpu.name} ({tpu.zone})", f"{now - since:.0f} s"
        self.watch.log(f"{label}: idle for {idle} (limit: {idle_limit_s} s): delete")
        return True

    def _delete(self, tpu: ObservedTpu, snapshot: Snapshot) -> str | None:
        """Delete a TPU; return the error ("" on success), or None if the TPU must stay for now."""
        node, label = NodeIdentity(tpu.name, tpu.zone, tpu.id), f"TPU {tpu.name} ({tpu.zone})"
        try:
            with self.watch.leases.held(lease_name(tpu.name)) as lease:
                # Check for a blocker here, not in the Claim: actor.delete() would return the
                # blocker as an error, but a TPU that must stay for now is no error.
                if blocker := self._blocker(tpu, snapshot):
                    self.watch.log(f"{label}: not deleted: {blocker}")
                    return None
                error = self.watch.actor.delete(node, Claim(lease.lost, lambda: ""))
                return f"{label}: {error}" if error else ""
        except LeaseHeldError as held:
            self.watch.log(f"{label}: {held}")
            return None

    def _blocker(self, tpu: ObservedTpu, snapshot: Snapshot) -> str:
        """Return why a TPU must not be deleted now; empty if it may be deleted."""
        age = self.watch.clock() - snapshot.asked_at
        if age > SNAPSHOT_VALID_S:
            return cause_text(Cause.of(CauseCode.ANSWERS_TOO_OLD, seconds=age))
        try:
            # Read the records again: a run may have been launched since the pass began.
            records = self.watch.store.read_all()
        except RecordError as error:
            return str(error)
        if records.unusable:
            return "a run record is invalid, so its run may need this TPU"
        if in_use(tpu, snapshot, records.usable.values()):
            return "it is in use now"
        return ""


def owned_tpu(tpu: FleetEntry, snapshot: Snapshot) -> ObservedTpu | None:
    """Return this fleet's existing TPU for an entry of the fleet file.

    Returns None if there is none or several.
    """
    matches = [
        observed
        for observed in snapshot.listings[0]
        if observed.name == tpu.name
        and observed.zone in tpu.zones
        and observed.is_ours
        and observed.id
    ]
    return matches[0] if len(matches) == 1 else None


def prune(
    releases: Path,
    records: Records,
    now: float,
    read_archived: Callable[[], Records] | None = None,
) -> list[str]:
    """Delete cached releases that no run needs, and return their names.

    Nothing is deleted while a record is unusable, since its run may need any release. ``releases``
    is the directory of the cached releases, ``now`` is in unix seconds. ``read_archived`` returns
    all records, with those in the archive. The archive may be large, so it is read only if
    ``records`` alone would allow a deletion.

    The releases that this fleet needs get a new modification time, so that another fleet that uses
    the same directory does not delete them.
    """
    cached: dict[str, float] = {}
    if releases.is_dir():
        cached = {path.name: path.stat().st_mtime for path in releases.iterdir() if path.is_dir()}
    to_delete = _unneeded(releases, cached, records, now)
    if to_delete and read_archived:
        to_delete = _unneeded(releases, cached, read_archived(), now)
    for name in to_delete:
        shutil.rmtree(releases / name, ignore_errors=True)
    return to_delete


def _unneeded(
    releases: Path, cached: Mapping[str, float], records: Records, now: float
) -> list[str]:
    """Return the releases to delete; set the modification time of needed ones to the present.

    ``cached`` maps each cached release to its modification time in unix seconds. A release is
    needed if the record of a run that is not done names it. Of the others, the newest
    RETAINED_RELEASES and those younger than YOUNG_SECONDS are kept.
    """
    if records.unusable:
        return []
    needed = {
        record.launch.release
        for record in records.usable.values()
        if record.wanted is not DesiredState.DONE
    }
    for release in needed & cached.keys():
        # The release may be missing for a moment while another process replaces it.
        with contextlib.suppress(OSError):
            os.utime(releases / release)
    unneeded = sorted(
        (name for name in cached if name not in needed), key=lambda name: -cached[name]
    )
    return sorted(
        name for name in unneeded[RETAINED_RELEASES:] if now - cached[name] > YOUNG_SECONDS
    )


def in_use(tpu: ObservedTpu, snapshot: Snapshot, records: Iterable[RunRecord]) -> bool:
    """Return whether a TPU is or may be in use.

    A TPU is in use if a run is wanted on it, or if a worker has an active run or a process that
    holds the TPU device. It may be in use if it is not READY, if the inventory does not list all
    its workers, or if a worker's answer is incomplete. ``records`` are the records of all runs.
    """
    if any(record.is_wanted and names_tpu(record, tpu) for record in records):
        return True
    hosts = [
        host
        for host, variables in snapshot.hosts.items()
        if (variables.get("tpu_zone"), variables.get("tpu_id")) == (tpu.zone, tpu.id)
    ]
    if tpu.state != READY or len(hosts) < tpu.workers:
        return True
    return any(is_busy(snapshot.answers.get(host) or {}) for host in hosts)


def names_tpu(record: RunRecord, tpu: ObservedTpu) -> bool:
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
    return bool(holders) or any(run["active"] for run in runs)


def idle_since(memory: Mapping[str, Any], node_id: str, is_in_use: bool, now: float) -> float:
    """Return since when a TPU is idle, in unix seconds; 0 while it is in use.

    Args:
        memory: the document about the TPU that the previous pass stored.
        node_id: the TPU's id. If it differs from the one in ``memory``, the TPU was recreated, and
            the idle time starts at ``now``.
        is_in_use: whether the TPU is in use now.
        now: unix seconds.
    """
    if is_in_use:
        return 0.0
    since = memory.get("since")
    is_same = memory.get("id") == node_id and isinstance(since, (int, float)) and since > 0
    return float(since) if is_same and since <= now else now
