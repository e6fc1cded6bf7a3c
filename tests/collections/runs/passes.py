"""Passes of the watch for tests, with real records and leases; playbooks do not run."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.tpufleet.core.plugins.module_utils.worker.done_marker import DoneMarker
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.actor import Actor, Play
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.lease import Claim, Leases
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import ObservedTpu
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observe import Snapshot
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import RecordFolder
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.status import cause_text
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_log import WatchLog
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_memory import Limits
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_pass import (
    RunOutcome,
    WatchPass,
)

from tests.collections.runs.answers import report, report_end
from tests.collections.runs.records import ZONE, record_fields

POD = ObservedTpu("pod", ZONE, "7", "READY", is_ours=True)
LOST = replace(POD, state="PREEMPTED")


@dataclass(frozen=True)
class RecordingActor(Actor):
    """Stand-in for the Actor, with which the watch runs playbooks: records plays and runs none.

    ``callbacks`` simulate what happens during plays: each play removes the first one and calls it.
    """

    plays: list[Play] = field(default_factory=list)
    callbacks: list[Any] = field(default_factory=list)

    def _play(self, subject: str, name: str, play: Play, claim: Claim) -> str:
        if reason := claim.lost() or claim.blocker():
            return reason
        self.plays.append(play)
        if self.callbacks:
            self.callbacks.pop(0)()
        return ""

    @property
    def playbooks(self) -> list[str]:
        return [name for play in self.plays for name in play.playbooks]


@dataclass
class Controller:
    """A controller with its own state directory; other controllers may use its ``fleet_state``."""

    fleet_state: Path
    state_dir: Path
    listing: list[ObservedTpu] = field(default_factory=lambda: [POD])
    now: float = field(default_factory=time.time)
    limits: Limits = field(default_factory=Limits)
    done_markers: dict[str, DoneMarker] = field(default_factory=dict)
    records: RecordFolder = field(init=False)
    actor: RecordingActor = field(init=False)

    def __post_init__(self) -> None:
        self.records = RecordFolder(str(self.fleet_state))
        log = WatchLog(self.state_dir / "watch.log", quiet=False)
        deadline = time.monotonic() + 600
        self.actor = RecordingActor(
            self.state_dir, self.state_dir, str(self.fleet_state), log, deadline
        )

    @property
    def log_text(self) -> str:
        """The text of the watch's log."""
        path = self.state_dir / "watch.log"
        return path.read_text() if path.exists() else ""

    def record_launch(self, run: str = "mine", **fields: Any) -> None:
        """Write a run's record as a launch does."""
        generation = self.records.read(run).get("generation", 0)
        changes = record_fields(run, **fields)
        changes.pop("generation")
        self.records.change(run, generation, changes, {"kind": "launched"})

    def watch(self, **more: Any) -> WatchPass:
        """Return a pass over the records."""
        defaults = {
            "store": RunStore.of(str(self.fleet_state)),
            "leases": Leases(RecordFolder(str(self.fleet_state / "watch"))),
            "actor": self.actor,
            "log": self.actor.log,
            "limits": self.limits,
            "list_tpus": lambda: self.listing,
            "read_done": lambda record: self.done_markers.get(record.run),
            "clock": lambda: self.now,
            "sleep": lambda seconds: None,
        }
        return WatchPass(**(defaults | more))

    def snapshot(self, answers: dict[str, Any] | None = None, **more: Any) -> Snapshot:
        """Return the listed TPUs and the workers' answers; by default, all workers are idle."""
        hosts = {
            f"{tpu.name}-w{worker}": {"tpu_zone": tpu.zone, "tpu_id": tpu.id}
            for tpu in self.listing
            for worker in range(tpu.workers)
        }
        idle = {host: {"runs": [], "holders": []} for host in hosts}
        answers = idle if answers is None else answers
        return replace(Snapshot(hosts, answers, (tuple(self.listing),), self.now), **more)

    def pass_once(self, snapshot: Snapshot | None = None, **more: Any) -> list[RunOutcome]:
        """Run one pass of the watch over all records: confirm losses, decide and act."""
        watch, snapshot = self.watch(**more), snapshot or self.snapshot()
        records = watch.store.read_all().usable
        return watch.act(records, watch.confirm(records.values(), snapshot))


def answers(controller: Controller, *runs: dict[str, Any]) -> Snapshot:
    """Return a snapshot in which the only worker reports these runs."""
    return controller.snapshot({"pod-w0": {"runs": list(runs)}})


def reason_text(outcome: RunOutcome) -> str:
    """Return the error or the causes of an outcome, as users read them."""
    return outcome.error or "; ".join(map(cause_text, outcome.causes))


def ended(code: str, run: str = "mine", attempt: int = 1) -> dict[str, Any]:
    """Return the report of run_info about a run that has ended on a worker."""
    return report_end(code, run=run, attempt=attempt)


def running(run: str = "mine", age: float = 1.0, step: int = 5) -> dict[str, Any]:
    """Return the report of run_info about a run that is training on a worker."""
    return report(run=run, heartbeat={"step": step}, heartbeat_age=age)
