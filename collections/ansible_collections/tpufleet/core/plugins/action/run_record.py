"""The action plugin of tpufleet.core.run_record: read and change run records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.worker.run import RunError
from ..plugin_utils.runs.event_kind import DesiredState
from ..plugin_utils.runs.record_change import change_desired_state
from ..plugin_utils.runs.record_error import RecordError, UnusableRecordError
from ..plugin_utils.runs.store import STORE_OPTIONS, RunStore
from ..plugin_utils.runs.watch_heartbeat import HeartbeatError, heartbeat_line, read_heartbeats


class ActionModule(ActionBase):
    """Reads records, or changes the desired state of a run."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Read or change records; if requested, also read the last passes of the watch."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "run": {"type": "str"},
                **STORE_OPTIONS,
                "wanted": {
                    "type": "str",
                    "choices": [str(DesiredState.STOPPED), str(DesiredState.DONE)],
                },
                "attempt": {"type": "int", "default": 0},
                "fence": {"type": "int", "default": 0},
                "passes": {"type": "bool", "default": False},
            }
        )
        if options["wanted"] and not options["run"]:
            raise AnsibleActionFail(
                "run_record: wanted is set without run. Set run to the name of a run"
            )
        api = options["api"]
        try:
            store = RunStore.of(options["fleet_state"], api)
            if options["run"]:
                desired_state = DesiredState(options["wanted"]) if options["wanted"] else None
                result = change_desired_state(
                    store,
                    str(options["run"]),
                    desired_state,
                    attempt=options["attempt"],
                    fence=options["fence"],
                    check=self._task.check_mode,
                )
            else:
                result = all_records(store)
        except (RecordError, RunError) as error:
            # Do not raise: Ansible ignores a task's failed_when if the plugin raises an exception.
            is_unusable = isinstance(error, UnusableRecordError)
            return {"failed": True, "msg": str(error), "unusable": is_unusable}
        return result | (last_passes(options["fleet_state"], api) if options["passes"] else {})


def all_records(store: RunStore) -> dict[str, Any]:
    """Return the valid records of all runs, and a warning for each invalid record."""
    records = store.read_all()
    return {
        "changed": False,
        "records": {run: record.fields() for run, record in records.usable.items()},
        "warnings": [unusable.error for unusable in records.unusable],
    }


def last_passes(fleet_state: str, api: Mapping[str, Any]) -> dict[str, Any]:
    """Return the watch's last pass on each controller; empty if heartbeats can't be read."""
    try:
        heartbeats = read_heartbeats(fleet_state, api)
    except HeartbeatError:
        return {"passes": [], "last_pass": ""}
    return {
        "passes": [
            asdict(heartbeat) | {"outcome": heartbeat.outcome.value} for heartbeat in heartbeats
        ],
        "last_pass": heartbeat_line(heartbeats, time.time()),
    }
