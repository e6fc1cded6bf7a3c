"""The action plugin of tpufleet.core.run_again: stop a run and launch it from its record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.cloud.fleet_name import DEFAULT_FLEET_NAME
from ..module_utils.worker.run import RunError, check_name
from ..module_utils.worker.run_state import RunState
from ..plugin_utils.plain_values import plain
from ..plugin_utils.runs.actor import ACTION_S, Actor
from ..plugin_utils.runs.causes import Cause, CauseCode
from ..plugin_utils.runs.event_kind import Action, DesiredState, EventKind
from ..plugin_utils.runs.history import Event
from ..plugin_utils.runs.lease import Claim, Lease, Leases, lease_name
from ..plugin_utils.runs.observation import FOREIGN, READY, Observation
from ..plugin_utils.runs.observe import Snapshot, tpu_variables_of_hosts, tpus_of_inventory
from ..plugin_utils.runs.record import RunRecord
from ..plugin_utils.runs.record_error import RecordError
from ..plugin_utils.runs.record_store import record_store
from ..plugin_utils.runs.release_cache import missing_cached_file
from ..plugin_utils.runs.status import cause_text, state_text
from ..plugin_utils.runs.store import STORE_OPTIONS, RunStore
from ..plugin_utils.runs.watch_log import WatchLog
from ..plugin_utils.runs.watch_pass import conflict_reason


class ActionModule(ActionBase):
    """Stops a run and launches it again with the recorded settings."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Restart the run while holding its TPU's lease, so that the watch leaves the run alone."""
        result = super().run(tmp, task_vars)
        required = {"run": "str", "project": "path", "state_dir": "path", "log": "path"}
        spec = {name: {"type": kind, "required": True} for name, kind in required.items()}
        spec |= STORE_OPTIONS
        spec["fleet_name"] = {"type": "str", "default": DEFAULT_FLEET_NAME}
        spec["even_if_stopped"] = {"type": "bool", "default": False}
        _, options = self.validate_argument_spec(argument_spec=spec)
        variables, api = task_vars or {}, options["api"]
        try:
            run, store = check_name(options["run"]), RunStore.of(options["fleet_state"], api)
            record = record_to_restart(run, store, options["even_if_stopped"])
            state_dir = Path(options["state_dir"]).expanduser()
            if missing := missing_cached_file(record.launch, state_dir):
                raise RunError(
                    f"run {run}: not restarted, this controller does not have {missing}. Restart "
                    "it on the controller that launched it, or launch it from its code, with all "
                    "options of its last launch: "
                    f"ansible-playbook train.yml -e run={run} -e config=FILE"
                )
            observed = observe(options, variables, record)
            if observed.tpu_state != READY:
                raise RunError(f"run {run}: {tpu_blocker(observed.tpu_state)}")
            if self._task.check_mode:
                return result | {"changed": True, "msg": f"run {run} would be stopped and launched"}
            leases = Leases(record_store(f"{options['fleet_state'].rstrip('/')}/watch", api))
            with leases.held(lease_name(record.launch.tpu)) as lease:
                failure = self._restart(options, observed, store, record, lease)
        except (RecordError, RunError) as error:
            raise AnsibleActionFail(str(error)) from None
        if failure:
            raise AnsibleActionFail(f"run {run}: {failure}")
        return result | {"changed": True, "msg": f"run {run} was stopped and launched again"}

    def _restart(
        self,
        options: Mapping[str, Any],
        observed: Observation,
        store: RunStore,
        record: RunRecord,
        lease: Lease,
    ) -> str:
        """Stop and launch the run while holding ``lease``. Return the error; empty on success.

        ``options`` are the module's options.
        """
        log = WatchLog(Path(options["log"]), quiet=False)
        fence = max(lease.fence, record.fence + 1)
        # Record the desired state RUNNING before the launch, so that the watch launches the run if
        # this launch fails.
        fields = {**record.relaunch_fields(), "fence": fence}
        record = store.change(record.run, record.generation, fields, Event(EventKind.RESTARTED))
        log(f"run {record.run}: restarted on request")
        deadline = time.monotonic() + 2 * ACTION_S
        state_dir = Path(options["state_dir"]).expanduser()
        actor = Actor(Path(options["project"]), state_dir, options["fleet_state"], log, deadline)
        claim = Claim(lease.lost, lambda: conflict_reason(store, record, fence))
        return actor.act(record, observed, Action.RESTART, fence, claim)


def record_to_restart(run: str, store: RunStore, even_if_stopped: bool) -> RunRecord:
    """Return the record of a run that may be restarted; raise RunError for other runs.

    A run that somebody stopped may be restarted only with ``even_if_stopped``. Timers restart
    runs without this option, so they do not resume stopped runs. A run that is done may never
    be restarted.
    """
    record = store.read(run)
    if record is None:
        raise RunError(
            f"run {run}: no record. Start it: ansible-playbook train.yml -e run={run} "
            "-e config=FILE"
        )
    if record.wanted is DesiredState.DONE:
        raise RunError(
            f"run {run}: not restarted, it is done. Start another: "
            "ansible-playbook train.yml -e run=NAME -e config=FILE"
        )
    if not record.is_wanted and not even_if_stopped:
        raise RunError(
            f"run {run}: not restarted, somebody stopped it. Resume it with the same settings: "
            f"ansible-playbook playbooks/restart.yml -e run={run} -e even_if_stopped=true"
        )
    return record


def observe(
    options: Mapping[str, Any], variables: Mapping[str, Any], record: RunRecord
) -> Observation:
    """Return the observed state of a run according to the inventory in ``variables``."""
    hosts = plain(tpu_variables_of_hosts(variables))
    tpus = tpus_of_inventory(hosts, options["fleet_name"])
    return Snapshot(hosts, {}, (tpus,), time.time()).of(record)


def tpu_blocker(tpu_state: str) -> str:
    """Return the error for a restart of a run whose TPU is in ``tpu_state``, which is not READY."""
    if tpu_state == FOREIGN:
        reason = state_text(RunState.NAME_TAKEN)
    else:
        reason = cause_text(Cause.of(CauseCode.TPU_STATE, tpu_state=tpu_state))
    return f"{reason}. See the TPUs: ansible-playbook playbooks/status.yml"
