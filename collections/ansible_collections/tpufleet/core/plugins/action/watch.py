"""The action plugin of tpufleet.core.watch: run one pass of the watch and report it."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.cloud.closest_names import closest_names
from ..module_utils.cloud.errors import CloudError
from ..module_utils.cloud.fleet_name import DEFAULT_FLEET_NAME, parse_fleet_name
from ..plugin_utils.fleet.cloud_tpus import open_source
from ..plugin_utils.fleet.source import list_nodes, zones_of
from ..plugin_utils.plain_values import plain
from ..plugin_utils.runs.actor import Actor
from ..plugin_utils.runs.done_marker import read_done_marker
from ..plugin_utils.runs.event_kind import Action
from ..plugin_utils.runs.lease import Leases
from ..plugin_utils.runs.observe import (
    Snapshot,
    tpu_variables_of_hosts,
    tpus_of_inventory,
    tpus_of_nodes,
)
from ..plugin_utils.runs.record_error import RecordError
from ..plugin_utils.runs.record_store import record_store
from ..plugin_utils.runs.store import STORE_OPTIONS, RunStore
from ..plugin_utils.runs.upkeep import Upkeep, UpkeepOutcome
from ..plugin_utils.runs.watch_heartbeat import (
    Heartbeat,
    HeartbeatError,
    PassOutcome,
    controller_name,
    write_heartbeat,
)
from ..plugin_utils.runs.watch_log import WatchLog
from ..plugin_utils.runs.watch_memory import Limits
from ..plugin_utils.runs.watch_pass import RunOutcome, WatchPass, unusable_outcomes

PASS_S = 1500.0
"""Time limit for all playbooks of one pass together, in seconds."""


class ActionModule(ActionBase):
    """Runs one pass of the watch over all runs that have a record."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Run a pass of the watch, and record when and how it ended (its heartbeat)."""
        result = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                **STORE_OPTIONS,
                "answers": {"type": "dict", "required": True},
                "asked_at": {"type": "float", "required": True},
                "project": {"type": "path", "required": True},
                "state_dir": {"type": "path", "required": True},
                "log": {"type": "path", "required": True},
                "run": {"type": "str", "default": ""},
                "fleet_name": {"type": "str", "default": DEFAULT_FLEET_NAME},
                "limits": {"type": "dict", "default": {}},
            }
        )
        began = time.time()
        try:
            outcomes, upkeep = self._run_pass(options, task_vars or {})
        except (RecordError, CloudError, ValueError) as error:
            self._write_heartbeat(options, began, str(error))
            raise AnsibleActionFail(str(error)) from None
        failures = [outcome.text for outcome in outcomes if outcome.failed]
        errors = "; ".join(failures + ([upkeep.error] if upkeep.error else []))
        self._write_heartbeat(options, began, errors)
        has_acted = any(outcome.action is not Action.NOTHING for outcome in outcomes)
        return result | {
            "changed": has_acted or bool(upkeep.deleted),
            "failed": bool(errors),
            "runs": [run_fields(outcome) for outcome in outcomes],
            "deleted_tpus": upkeep.deleted,
            "lines": [outcome.text for outcome in outcomes] or ["no run has a record"],
            "msg": errors or "the pass succeeded",
        }

    def _run_pass(
        self, options: Mapping[str, Any], variables: Mapping[str, Any]
    ) -> tuple[list[RunOutcome], UpkeepOutcome]:
        fleet_state, api = options["fleet_state"], options["api"]
        check = bool(self._task.check_mode)
        log = WatchLog(Path(options["log"]), quiet=check)
        fleet_name = parse_fleet_name(options["fleet_name"])
        hosts = plain(tpu_variables_of_hosts(variables))
        tpus = tpus_of_inventory(hosts, fleet_name)
        zones = zones_of(api)
        snapshot = Snapshot(hosts, plain(options["answers"]), (tpus,), options["asked_at"], zones)
        watch = WatchPass(
            store=RunStore.of(fleet_state, api),
            leases=Leases(record_store(f"{fleet_state.rstrip('/')}/watch", api)),
            actor=Actor(
                Path(options["project"]),
                Path(options["state_dir"]).expanduser(),
                fleet_state,
                log,
                time.monotonic() + PASS_S,
            ),
            log=log,
            limits=Limits.parse(options["limits"]),
            read_done=lambda record: read_done_marker(record.launch.checkpoints, record.run, api),
            list_tpus=lambda: tpus_of_nodes(list_nodes(open_source(api), zones), fleet_name),
            check=check,
        )
        records = watch.store.read_all()
        selected = {
            run: record for run, record in records.usable.items() if options["run"] in ("", run)
        }
        unusable = [record for record in records.unusable if options["run"] in ("", record.name)]
        if options["run"] and not (selected or unusable):
            raise AnsibleActionFail(
                f"run {options['run']} has no record in {fleet_state}. Runs with a record: "
                f"{closest_names(options['run'], records.usable)}. List the runs: "
                "ansible-playbook playbooks/status.yml"
            )
        snapshot = watch.confirm(selected.values(), snapshot)
        outcomes = watch.act(selected, snapshot)
        outcomes += unusable_outcomes(unusable)
        if options["run"]:
            return outcomes, UpkeepOutcome()
        # tpu_fleet is not an option of the module: Ansible would evaluate it before this module
        # recovers runs, and an invalid fleet file would prevent the recovery.
        fleet = plain(self._templar.template(variables.get("tpu_fleet") or []))
        idle = record_store(f"{fleet_state.rstrip('/')}/idle", api)
        return outcomes, Upkeep(watch, idle).run(fleet, snapshot, records)

    def _write_heartbeat(self, options: Mapping[str, Any], began: float, error_text: str) -> None:
        if self._task.check_mode:
            return
        now, name = time.time(), controller_name(socket.gethostname())
        outcome = PassOutcome.FAILED if error_text else PassOutcome.OK
        heartbeat = Heartbeat(name, now, now - began, outcome, error_text)
        try:
            write_heartbeat(options["fleet_state"], heartbeat, options["api"])
        except HeartbeatError as error:
            Display().warning(str(error))


def run_fields(outcome: RunOutcome) -> dict[str, Any]:
    """Return the outcome of a pass for one run, as the module returns it."""
    return {
        "run": outcome.run,
        "state": outcome.state.value,
        "causes": [cause.fields() for cause in outcome.causes],
        "action": outcome.action.value,
        "failed": outcome.failed,
        "error": outcome.error,
        "text": outcome.text,
    }
