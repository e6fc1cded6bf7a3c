"""The whole of tpufleet.core.watch: decide for each run, act by people's playbooks."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils import watch_decision as watch
from ..module_utils.run import chip_of, overlap
from ..module_utils.run_record import RecordConflictError, RecordError, RecordStore, record_store
from ..module_utils.tpu_api import ApiSettings, TpuApi
from ..module_utils.tpu_errors import TpuApiError
from ..module_utils.tpu_nodes import parse_node
from ..module_utils.watch_view import view
from ..plugin_utils.run_actor import Actor, Diary
from ..plugin_utils.watch_upkeep import delete_idle, prune
from .run_record import plain

LEASE_SECONDS = 90
RENEW_SECONDS = 20
AT_ONCE = 8
ASK_AT_MOST, ASK_AGAIN_S = 2, 1.0
HOST_FACTS = (
    "tpu_name",
    "tpu_id",
    "tpu_state",
    "tpu_worker_count",
    "tpu_health",
    "tpu_zone",
    "tpu_multislice",
    "tpu_slice_count",
)
LOOK_HOLDS_S = 90
"""A run's turn may come minutes after the look: what takes something away asks for a newer one."""


class ActionModule(ActionBase):
    """One pass over all runs that the records want."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Look, decide, remember, act; each run for itself."""
        result = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "fleet_state": {"type": "str", "required": True},
                "answers": {"type": "dict", "required": True},
                "project": {"type": "path", "required": True},
                "releases": {"type": "path", "required": True},
                "log": {"type": "path", "required": True},
                "run": {"type": "str", "default": ""},
                "limits": {"type": "dict", "default": {}},
            }
        )
        task_vars = task_vars or {}
        self._check = bool(self._task.check_mode)
        self._looked = time.time()
        self._diary = Diary(Path(options["log"]), quiet=self._check)
        project, releases = Path(options["project"]), Path(options["releases"])
        self._actor = Actor(project, releases, options["fleet_state"], self._diary)
        try:
            self._limits = watch.Limits(
                **{key: float(value) for key, value in options["limits"].items()}
            )
            api = plain(self._templar.template(task_vars.get("tpu_api") or {}))
            store = record_store(options["fleet_state"], api)
            leases = record_store(f"{options['fleet_state'].rstrip('/')}/watch", api)
            hosts = host_facts(task_vars)
            records = {run: store.read(run) for run in store.runs()}
            if options["run"]:
                records = {run: found for run, found in records.items() if run == options["run"]}
            answers = plain(options["answers"])
            listed = self._listed(api, records, hosts, answers)
        except (RecordError, TpuApiError, TypeError) as error:
            raise AnsibleActionFail(str(error)) from None

        def one(run: str) -> dict[str, Any]:
            seen = view(run, records[run], hosts, answers, listed)
            try:
                return self._one(run, store, leases, records[run], seen)
            except (RecordError, OSError) as error:
                self._diary(f"run {run}: {error}")
                return {"run": run, "state": "unknown", "why": str(error), "failed": True}

        def on_one_tpu(runs: list[str]) -> list[dict[str, Any]]:
            # What one does to the TPU, the next must not do again, nor take chips that one has.
            told: list[dict[str, Any]] = []
            for run in runs:
                if why := taken(run, told, records):
                    told.append({"run": run, "state": "waiting", "why": why, "action": "nothing"})
                else:
                    told.append(one(run))
            return told

        with ThreadPoolExecutor(AT_ONCE) as pool:
            told = list(pool.map(on_one_tpu, by_tpu(records)))
        done = sorted((each for group in told for each in group), key=lambda each: each["run"])
        if not options["run"]:
            done += self._upkeep(options, task_vars, hosts, answers, store, api)
        failed = [each for each in done if each.get("failed")]
        return result | {
            "changed": any(each.get("action", "nothing") != "nothing" for each in done),
            "failed": bool(failed),
            "runs": [each for each in done if "run" in each],
            "msg": "; ".join(f"{each.get('run', 'fleet')}: {each['why']}" for each in failed)
            or "looked",
        }

    def _listed(
        self,
        api: Mapping[str, Any],
        records: Mapping[str, Any],
        hosts: Mapping[str, Any],
        answers: Mapping[str, Any],
    ) -> list[dict[str, str]]:
        """Ask the API itself if a wanted run's TPU seems to be lost, until that is confirmed.

        What was lost since the inventory was read is told by another word than the inventory's, so
        that word is asked for again at once: the next pass may be a minute away.
        """
        wanted = [record for record in records.values() if record.get("wanted") == "running"]
        told: list[dict[str, str]] = []
        while len(told) < ASK_AT_MOST and any(
            unsure(view("", record, hosts, answers, told)) for record in wanted if record.get("tpu")
        ):
            if told:
                time.sleep(ASK_AGAIN_S)
            nodes = TpuApi(ApiSettings.of(api)).list_nodes(api.get("zones") or ["-"]).nodes
            found = [parse_node(node) for node in nodes]
            told.append({node.name: node.state for node in found})
        return told

    def _upkeep(
        self,
        options: Mapping[str, Any],
        task_vars: Mapping[str, Any],
        hosts: Mapping[str, Any],
        answers: Mapping[str, Any],
        store: RecordStore,
        api: Mapping[str, Any],
    ) -> list[dict[str, Any]]:
        """Delete what is idle for long, and let go of old releases."""
        try:
            fleet = plain(self._templar.template(task_vars.get("tpu_fleet") or []))
            memory = record_store(f"{options['fleet_state'].rstrip('/')}/idle", api)
            common = (hosts, answers, store, memory, self._actor, self._diary)
            gone = delete_idle(fleet, *common, check=self._check)
            if not self._check:
                records = [store.read(run) for run in store.runs()]
                prune(Path(options["releases"]).expanduser(), records)
        except (RecordError, TpuApiError, OSError) as error:
            return [{"failed": True, "why": str(error)}]
        return [{"action": "delete"} for _ in gone]

    def _one(
        self,
        run: str,
        store: RecordStore,
        leases: RecordStore,
        record: dict[str, Any],
        seen: watch.Seen,
    ) -> dict[str, Any]:
        decision = watch.decide(record, seen, self._looked, self._limits)
        told = {"run": run, "state": decision.state, "why": decision.why, "action": decision.action}
        line = f"run {run}: {decision.state}" + (f": {decision.why}" if decision.why else "")
        if decision.action == watch.NOTHING:
            if decision.news:
                self._diary(line)
            self._remember(run, store, record, decision, {}, line if decision.news else "")
            return told
        line += f": {decision.action}"
        if self._check:
            Display().display(f"  {line}")
            return told
        with self._leased(lease_name(run, record), leases) as mine:
            if not mine:
                return told | {"action": "nothing", "why": "another controller is at it"}
            old = time.time() - self._looked
            if old > LOOK_HOLDS_S and decision.action in watch.TAKES_AWAY:
                why = f"{decision.why}; that was seen {old:.0f} s ago, the next pass looks again"
                return told | {"action": "nothing", "why": why}
            fields = {
                watch.GIVE_UP: {"wanted": "stopped", "given_up": decision.why},
                watch.RECORD_DONE: {"wanted": "done"},
            }.get(decision.action, {})
            if not self._remember(run, store, record, decision, fields, line):
                return told | {"action": "nothing", "why": "its record has just changed"}
            self._diary(line)
            if self._actor.lacks(run, record, decision.action):
                told["action"] = "nothing"
            failure = self._actor.act(run, record, seen, decision.action)
            return told | ({"failed": True, "why": failure} if failure else {})

    def _remember(
        self,
        run: str,
        store: RecordStore,
        record: Mapping[str, Any],
        decision: watch.Decision,
        fields: Mapping[str, Any],
        event: str,
    ) -> bool:
        """Write down what the watch knows; False if someone else has changed the record."""
        kept = decision.kept()
        if self._check or (record.get("watch") == kept and not fields):
            return True
        try:
            store.change(run, int(record.get("generation", 0)), {**fields, "watch": kept}, event)
        except RecordConflictError:
            return False
        return True

    @contextlib.contextmanager
    def _leased(self, run: str, leases: RecordStore) -> Iterator[bool]:
        """Have the run for oneself among all controllers, as long as one lives."""
        me = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

        def take(until: float) -> bool:
            lease = leases.read(run)
            if lease.get("holder") != me and float(lease.get("until", 0)) > time.time():
                return False
            with contextlib.suppress(RecordConflictError):
                leases.change(
                    run, int(lease.get("generation", 0)), {"holder": me, "until": until}, ""
                )
                return True
            return False

        if not take(time.time() + LEASE_SECONDS):
            yield False
            return
        over = threading.Event()

        def renew() -> None:
            while not over.wait(RENEW_SECONDS):
                with contextlib.suppress(RecordError):
                    take(time.time() + LEASE_SECONDS)

        renewing = threading.Thread(target=renew, daemon=True)
        renewing.start()
        try:
            yield True
        finally:
            over.set()
            renewing.join()
            with contextlib.suppress(RecordError):
                take(0)


def by_tpu(records: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Put the runs of one TPU together, the one first that was launched last."""
    groups: dict[str, list[str]] = {}
    last_first = sorted(
        records.items(), key=lambda item: (-float(item[1].get("wanted_since") or 0), item[0])
    )
    for run, record in last_first:
        groups.setdefault(lease_name(run, record), []).append(run)
    return list(groups.values())


def lease_name(run: str, record: Mapping[str, Any]) -> str:
    """Name what only one controller may act on: a TPU with all its runs."""
    return f"runs-of-{record['tpu']}" if record.get("tpu") else run


def taken(
    run: str, told: Iterable[Mapping[str, Any]], records: Mapping[str, Mapping[str, Any]]
) -> str:
    """Say why a run that is wanted has to wait after what this pass did for others of its TPU;
    empty if it has not."""
    for each in told if records[run].get("wanted") == "running" else ():
        if each.get("action") in (watch.RECREATE, watch.REPLACE):
            return f"its TPU is made anew for run {each['run']}"
        chips = chip_of(records[each["run"]]), chip_of(records[run])
        if each.get("action") in (watch.LAUNCH, watch.RESTART) and overlap(*chips):
            return f"run {each['run']} is launched there"
    return ""


def unsure(seen: watch.Seen) -> bool:
    """Tell whether a TPU looks lost or a worker is away, and the API did not say so twice."""
    lost = seen.node in watch.DEAD or any(part.active is None for part in seen.parts)
    return lost and not seen.asked_twice


def host_facts(task_vars: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Read the inventory's word on every host."""
    hostvars = task_vars["hostvars"]
    return {
        str(host): {
            fact: plain(hostvars[host][fact]) for fact in HOST_FACTS if fact in hostvars[host]
        }
        for host in task_vars["groups"]["all"]
        if host != "localhost"
    }
