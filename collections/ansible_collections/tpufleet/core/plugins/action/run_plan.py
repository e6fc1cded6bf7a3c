"""The action plugin of tpufleet.core.run_plan: plan launches from config, code and records."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

from ..module_utils.worker.contract import RENDEZVOUS_SECONDS
from ..module_utils.worker.launch_spec import InvalidLaunchError, LaunchSpec
from ..module_utils.worker.node_identity import NodeIdentity
from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.process import check_no_secrets, check_secrets
from ..module_utils.worker.release import ReleaseError
from ..module_utils.worker.run import RunError, check_name
from ..plugin_utils.plain_values import plain
from ..plugin_utils.runs.code_tree import staged
from ..plugin_utils.runs.launch import new_launches, relaunched
from ..plugin_utils.runs.record_change import RecordLaunchResult, record_launch
from ..plugin_utils.runs.record_error import RecordError
from ..plugin_utils.runs.release_cache import (
    cache_lock,
    cache_release,
    cached_release_path,
    verify_release,
)
from ..plugin_utils.runs.run_plan import (
    Placement,
    Worker,
    check_shared_variables,
    checked_image,
    command_of,
    find_config,
    parse_overrides,
    place_processes,
    read_config,
    run_name,
    worker_of,
)
from ..plugin_utils.runs.run_sweep import read_sweep
from ..plugin_utils.runs.secret_sources import EDIT, check_secret_files, outside_secrets
from ..plugin_utils.runs.status import changed_launch_text
from ..plugin_utils.runs.store import STORE_OPTIONS, RunStore
from ..plugin_utils.runs.trainer_command import compile_arguments
from ..plugin_utils.runs.typed_values import parse_env, truncated_value_error

WITH_SPACES = {"set": "steps=2000 seed=2", "command": "PROGRAM ARGUMENT", "env": "A=1 B=2"}
"""Command-line variables whose values may have spaces, each with an example."""
MAX_PARALLEL = 16


class ActionModule(ActionBase):
    """Plans the runs of a play, and records them as wanted.

    Runs whose workers must be checked first are recorded later, by the action run_judge.
    """

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Plan new runs from host variables and the config, or a relaunch from a run record."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "run": {"type": "str"},
                "config": {"type": "str"},
                "command": {"type": "str"},
                "image": {"type": "str", "default": ""},
                "starts_in_image": {"type": "bool", "default": False},
                "set": {"type": "raw", "default": []},
                "project": {"type": "path", "required": True},
                "sweep": {"type": "str"},
                "code": {"type": "path", "required": True},
                "code_paths": {"type": "list", "elements": "str", "default": []},
                "lock": {"type": "path", "required": True},
                "jax_requirements": {"type": "str", "required": True},
                "checkpoints": {"type": "str", "required": True},
                "compile_cache": {"type": "str", "default": ""},
                "outputs": {"type": "str", "default": ""},
                "volatile_checkpoints": {"type": "bool", "default": False},
                "env": {"type": "raw", "default": {}},
                "rendezvous_seconds": {"type": "int", "default": RENDEZVOUS_SECONDS},
                "state_dir": {"type": "path", "required": True},
                **STORE_OPTIONS,
                "relaunch": {"type": "bool", "default": False},
                "wait": {
                    "type": "str",
                    "choices": ["started", "first_step", "done"],
                    "default": "first_step",
                },
            }
        )
        if error := truncated_value_error(WITH_SPACES, "train.yml"):
            raise AnsibleActionFail(error)
        try:
            return self._plan(plain(options), task_vars or {})
        except (RunError, RecordError, ReleaseError, InvalidLaunchError) as error:
            raise AnsibleActionFail(str(error)) from None
        except OSError as error:
            raise AnsibleActionFail(os_error_text(error)) from None

    def _plan(self, options: dict[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        hostvars = task_vars["hostvars"]
        hosts = [str(host) for host in task_vars["ansible_play_hosts_all"]]
        workers = [worker_of(host, hostvars[host]) for host in hosts]
        warnings: list[str] = []
        for host in hosts:
            secrets = parse_env(hostvars[host].get("secrets") or {}, "secrets")
            check_secrets(secrets)
            if problem := outside_secrets(hostvars[host], secrets):
                warnings.append(f"{problem}. Move each below the line 'secrets:', indented: {EDIT}")
        nodes = {host: node_of(hostvars[host]) for host in hosts}
        config = None
        store = RunStore.of(options["fleet_state"], options["api"])
        if options["relaunch"]:
            placements, launches = self._plan_relaunch(options, store, workers, nodes)
        else:
            check_secret_files(task_vars["ansible_inventory_sources"])
            check_shared_variables({host: hostvars[host] for host in hosts})
            for host in hosts:
                shared = hostvars[host].get("worker_environment") or {}
                name = "worker_environment"
                check_no_secrets(parse_env(shared, name), name)
            placements, launches, config = self._plan_new(options, workers, nodes)
        checked = [LaunchSpec.from_json(launch.to_json()) for launch in launches.values()]
        unlisted = hostvars[hosts[0]].get("tpu_unreachable") or ()
        results = self._record_launches(options, store, checked, ready_tpus(task_vars), unlisted)
        return {
            "changed": any(result.is_recorded for result in results),
            "release": checked[0].release,
            "wait": options["wait"],
            "launches": {result.launch.run: result.launch.to_json() for result in results},
            "recorded": {
                result.launch.run: {
                    "is_recorded": result.is_recorded,
                    "was_wanted": result.was_wanted,
                    "finished_attempt": result.finished_attempt,
                    "finished_launch": result.finished_launch,
                }
                for result in results
            },
            "notes": [
                changed_launch_text(result.launch.run, result.changes, check=self._task.check_mode)
                for result in results
                if result.changes
            ],
            "processes": {
                host: {
                    "run": placement.run,
                    "process_id": placement.process_id,
                    "tpu": placement.tpu,
                    "worker": placement.worker,
                }
                for host, placement in placements.items()
            },
            "compile": steps_to_compile(config, checked, hostvars),
            "warnings": list(dict.fromkeys(warnings)),
        }

    def _record_launches(
        self,
        options: Mapping[str, Any],
        store: RunStore,
        launches: list[LaunchSpec],
        ready: set[NodeIdentity],
        unlisted: Collection[str],
    ) -> list[RecordLaunchResult]:
        """Record the runs as wanted, in parallel because each record may need HTTP requests.

        record_launch() does not record a run whose workers must be checked first. ``ready`` are the
        READY TPUs. ``unlisted`` are the zones whose TPUs could not be listed.
        """
        # Only -e checkpoints= moves a run to other checkpoints. A changed inventory does not,
        # because the run would start again from step 0.
        has_chosen_checkpoints = "checkpoints" in load_extra_vars(self._loader)

        def record_one(
            launch: LaunchSpec, check: bool = self._task.check_mode
        ) -> RecordLaunchResult:
            return record_launch(
                store,
                launch,
                is_relaunch=options["relaunch"],
                same_checkpoints=not (has_chosen_checkpoints or options["relaunch"]),
                ready=() if options["relaunch"] else ready,
                unlisted=() if options["relaunch"] else unlisted,
                check=check,
            )

        with ThreadPoolExecutor(MAX_PARALLEL) as pool:
            # Check all runs before recording any, because the watch launches recorded runs.
            if len(launches) > 1:
                list(pool.map(partial(record_one, check=True), launches))
            return list(pool.map(record_one, launches))

    def _plan_new(
        self, options: Mapping[str, Any], workers: list[Worker], nodes: dict[str, NodeIdentity]
    ) -> tuple[dict[str, Placement], dict[str, LaunchSpec], Path | None]:
        """Plan the runs that the command line requests.

        Returns the placement of each host's process, the launch of each run, and the path of the
        config (None without one). Raises RunError.
        """
        command = command_of(options["command"])
        path, text = None, None
        directories = [Path.cwd(), Path(options["project"]).resolve()]
        if options["config"]:
            path = find_config(options["config"], directories).resolve()
            text = read_config(path, strict=not options["command"])
        elif not options["command"]:
            raise RunError(
                "neither a config nor a command is set. Set one: ansible-playbook train.yml "
                "-e config=FILE (or -e command='\"PROGRAM ARGUMENT …\"' -e run=NAME)"
            )
        name = run_name(options["run"], path, command)
        sweep = None
        if options["sweep"]:
            file = find_config(options["sweep"], directories, "sweep")
            sweep = (file, read_sweep(file))
        placements = place_processes(workers, name, sweep)
        lock = read_lock(Path(options["lock"]))
        common = {
            "release": self._cache_code(options, lock),
            "requirements": hashlib.sha256(lock).hexdigest(),
            "jax_requirements": options["jax_requirements"],
            "image": checked_image(options["image"], options["command"]),
            "starts_in_image": bool(options["image"]) and options["starts_in_image"],
            "config": text,
            "config_name": path.name if path else "config.yml",
            "compile_cache": options["compile_cache"],
            "volatile_checkpoints": options["volatile_checkpoints"],
            "rendezvous_seconds": options["rendezvous_seconds"],
            "env": parse_env(options["env"]),
        }
        overrides = parse_overrides(options["set"])
        locations = options["checkpoints"], options["outputs"]
        launches = new_launches(common, command, overrides, *locations, placements, nodes)
        for launch in launches.values():
            check_no_secrets(launch.env, "env")
        return placements, launches, path

    def _plan_relaunch(
        self,
        options: Mapping[str, Any],
        store: RunStore,
        workers: list[Worker],
        nodes: dict[str, NodeIdentity],
    ) -> tuple[dict[str, Placement], dict[str, LaunchSpec]]:
        """Plan the relaunch of one run from its record.

        Returns the placement of each host's process, and the launch by the run's name. Raises
        RunError.
        """
        run = check_name(str(options["run"]))
        record = store.read(run)
        if record is None:
            raise RunError(
                f"run {run}: no record in {options['fleet_state']}. Start the run: "
                f"ansible-playbook train.yml -e run={run} -e config=FILE"
            )
        code = Path(options["code"])
        verify_release(code)
        if code.name != record.launch.release:
            raise RunError(
                f"{code} is not the release that run {run} was launched with "
                f"({record.launch.release}). Relaunch the run with its own release: "
                f"ansible-playbook playbooks/restart.yml -e run={run}"
            )
        placements = place_processes(workers, run)
        others = sorted({placement.run for placement in placements.values()} - {run})
        if others:
            raise RunError(
                f"run {run}: not relaunched, because the selected workers would start other runs, "
                f"too ({', '.join(others)}). Relaunch only this run: "
                f"ansible-playbook playbooks/restart.yml -e run={run}"
            )
        return placements, {run: relaunched(record.launch, options["outputs"], placements, nodes)}

    def _cache_code(self, options: Mapping[str, Any], lock: bytes) -> str:
        """Cache the lock file, and the code as a release; return the release's name."""
        tree, release = staged(options["code"], options["code_paths"])
        if not self._task.check_mode:
            state_dir = Path(options["state_dir"])
            cache_release(tree, cached_release_path(state_dir, release))
            cache_lock(state_dir, lock)
        return release


def read_lock(path: Path) -> bytes:
    """Return the content of the environment's lock file. Raises RunError, OSError."""
    if not path.is_file():
        requirements = path.with_suffix(".in")
        option = f" -e requirements={requirements}" if requirements.is_file() else ""
        raise RunError(
            f"{path}: there is no such lock file. Create it and install its packages, with the "
            "same values of requirements and worker_extras as for this launch: "
            f"ansible-playbook setup.yml{option}"
        )
    return path.read_bytes().strip()


def steps_to_compile(
    config: Path | None, launches: list[LaunchSpec], hostvars: Mapping[str, Any]
) -> list[list[str]]:
    """Return the trainer's ``compile`` arguments for each launch, without duplicates.

    Launches whose step can't be compiled on the controller are left out.
    """
    names = ("tpu_generation", "tpu_accelerator_type", "tpu_topology")
    steps: list[list[str]] = []
    for launch in launches if config else ():
        tpu = hostvars[launch.placement[0]]
        arguments = compile_arguments(launch, config, *(str(tpu.get(name) or "") for name in names))
        if arguments and arguments not in steps:
            steps.append(arguments)
    return steps


def ready_tpus(task_vars: Mapping[str, Any]) -> set[NodeIdentity]:
    """Return all READY TPUs of the inventory, not only those of this play."""
    leaders = [task_vars["hostvars"][host] for host in task_vars["groups"].get("leaders", [])]
    # Skip hosts that are not TPU workers: another inventory plugin may have a group ``leaders``,
    # too.
    return {node_of(variables) for variables in leaders if "tpu_id" in variables}


def node_of(variables: Mapping[str, Any]) -> NodeIdentity:
    """Return the identity of a host's TPU."""
    return NodeIdentity(
        str(variables["tpu_name"]), str(variables["tpu_zone"]), str(variables["tpu_id"])
    )
