"""The action plugin of tpufleet.core.trainer_command: plan a command from a run's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import randbelow
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.worker.contract import ATTEMPT_PORTS
from ..module_utils.worker.launch_spec import InvalidLaunchError, LaunchSpec
from ..module_utils.worker.process import check_no_secrets
from ..module_utils.worker.run import RunError, check_name
from ..plugin_utils.fleet.inventory_groups import group_of, workers_of
from ..plugin_utils.fleet.ownership import FOREIGN_GROUP
from ..plugin_utils.fleet.slices import run_tpu_names
from ..plugin_utils.plain_values import plain
from ..plugin_utils.runs.launch import placement_fields
from ..plugin_utils.runs.record_error import RecordError
from ..plugin_utils.runs.release_cache import (
    cached_lock_path,
    cached_release_path,
    is_cached,
    lock_matches_digest,
)
from ..plugin_utils.runs.run_plan import parse_overrides, worker_of
from ..plugin_utils.runs.store import STORE_OPTIONS, RunStore
from ..plugin_utils.runs.trainer_command import (
    EXPORT,
    OPTIONS,
    bucket_target,
    check_trainer,
    command_launch,
    export_directory,
    placements,
)
from ..plugin_utils.runs.typed_values import parse_env, truncated_value_error
from ..plugin_utils.setup.own_lock import setup_with_lock

WITH_SPACES = {"set": "batch=8 seed=2", "env": "A=1 B=2"}
"""Command-line variables whose values may have spaces, each with an example."""


class ActionModule(ActionBase):
    """Reads a run's record and returns a command of the trainer, without running it."""

    _supports_check_mode = True
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return what a playbook needs to run the command: launch, workers, code, setup command."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "command": {"type": "str", "choices": list(OPTIONS), "required": True},
                "run": {"type": "str", "required": True},
                **STORE_OPTIONS,
                "state_dir": {"type": "path", "required": True},
                "tpu": {"type": "str", "default": ""},
                "set": {"type": "raw", "default": []},
                "env": {"type": "raw", "default": {}},
                "step": {"type": "int"},
                "steps": {"type": "int"},
                "to": {"type": "str", "default": ""},
                "names": {"type": "str", "choices": ["transformers", "plain"]},
            }
        )
        if error := truncated_value_error(WITH_SPACES, f"playbooks/{options['command']}.yml"):
            raise AnsibleActionFail(error)
        try:
            return self._plan(plain(options), task_vars or {})
        except (RunError, RecordError, InvalidLaunchError) as error:
            raise AnsibleActionFail(str(error)) from None

    def _plan(self, options: dict[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        command, run = options["command"], check_name(options["run"])
        record = RunStore.of(options["fleet_state"], options["api"]).read(run)
        if record is None:
            raise RunError(
                f"run {run}: no record in {options['fleet_state']}. See the runs: "
                "ansible-playbook playbooks/status.yml"
            )
        launch = record.launch
        check_trainer(launch, command)
        tpu = options["tpu"] or launch.tpu
        groups, hostvars = task_vars["groups"], task_vars["hostvars"]
        is_named = bool(options["tpu"])
        hosts = workers_of(groups, tpu) if is_named else run_workers(launch, groups, hostvars)
        workers = [worker_of(host, hostvars[host]) for host in hosts]
        env = parse_env(options["env"])
        check_no_secrets(env, "env")
        fields = placement_fields(run, placements(launch, command, tpu, workers, env), {})
        target = bucket_target(options["to"])
        command_options = {name: options[name] for names in OPTIONS.values() for name in names}
        command_options["to"] = target
        overrides = parse_overrides(options["set"])
        # Use a random attempt number: the ports of the command's processes are derived from it, and
        # another command may run on the same workers at the same time.
        attempt = randbelow(ATTEMPT_PORTS)
        planned = command_launch(launch, command, command_options, overrides, env, fields, attempt)
        checked = LaunchSpec.from_json(planned.to_json())
        is_fetched = command == EXPORT and not target
        # If several zones have a TPU of this name, only the name with the zone selects one of them.
        address = tpu if group_of(tpu) in groups else f"{tpu}_{hostvars[hosts[0]]['tpu_zone']}"
        state_dir = Path(options["state_dir"])
        release = cached_release_path(state_dir, launch.release)
        return {
            "changed": False,
            "workers": list(checked.placement),
            "launch": checked.to_json(),
            "code": str(release) if is_cached(release) else "",
            "setup": setup_command(launch, address, state_dir),
            "export": str(export_directory(run, checked.attempt)) if is_fetched else "",
        }


def run_workers(
    launch: LaunchSpec, groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]
) -> list[str]:
    """Return the READY workers of a run's TPU, or of this fleet's later TPU of the same name.

    A foreign TPU that has the name now is left out. ``launch`` is the run's last launch, ``groups``
    are the hosts of each inventory group.
    """
    ids = {node.id for node in launch.nodes}
    foreign = groups.get(FOREIGN_GROUP, [])
    ready = groups.get("tpu", [])
    same = [host for host in ready if hostvars[host].get("tpu_id") in ids]
    if {hostvars[host]["tpu_id"] for host in same} == ids:
        return same
    # A recreated slice of a multislice has another id.
    return [
        host
        for host in ready
        if host not in foreign and launch.tpu in run_tpu_names(hostvars[host])
    ]


def setup_command(launch: LaunchSpec, tpu: str, state_dir: Path) -> str:
    """Return the setup command for a TPU that lacks the Python environment of a launch.

    ``tpu`` is the value of ``-e tpu=``. The command names the copy of the launch's lock file in
    ``state_dir``, this controller's state directory. Without an intact copy, the command installs
    the current lock file, which may differ.
    """
    lock = cached_lock_path(state_dir, launch.requirements)
    if not lock_matches_digest(lock, launch.requirements):
        return f"ansible-playbook setup.yml -e tpu={tpu}"
    return f"{setup_with_lock(lock)} -e tpu={tpu} -e jax_requirements={launch.jax_requirements}"
