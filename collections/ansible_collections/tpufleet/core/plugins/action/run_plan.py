"""The whole of tpufleet.core.run_plan: it only reads what the controller has."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.code_tree import keep
from ..module_utils.release import ReleaseError
from ..module_utils.run import RunError
from ..module_utils.run_plan import (
    Worker,
    find_config,
    one_for_all,
    parts,
    read_config,
    run_name,
    words,
)
from ..module_utils.run_sweep import read_sweep
from ..plugin_utils.staged_code import staged


class ActionModule(ActionBase):
    """Plans a run: which command and config, and each addressed worker's part."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Read the inventory's variables of the play's hosts and the config; one line says what is
        wrong."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "run": {"type": "str"},
                "config": {"type": "str"},
                "command": {"type": "str"},
                "set": {"type": "raw", "default": []},
                "project": {"type": "path", "required": True},
                "sweep": {"type": "str"},
                "code": {"type": "path"},
                "code_paths": {"type": "list", "elements": "str", "default": []},
                "keep": {"type": "path"},
            }
        )
        try:
            return self._plan(options, task_vars or {})
        except (RunError, ReleaseError) as error:
            raise AnsibleActionFail(str(error)) from None
        except OSError as error:
            raise AnsibleActionFail(f"{error.filename}: {error.strerror}") from None

    def _plan(self, options: dict, task_vars: dict) -> dict:
        command = words(options["command"], options["set"])
        path, text = None, None
        places = [Path.cwd(), Path(options["project"]).resolve()]
        if options["config"]:
            path = find_config(options["config"], places).resolve()
            text = read_config(path, strict=not options["command"])
        elif not options["command"]:
            raise RunError(
                "say what to run: ansible-playbook train.yml -e config=FILE (or "
                "-e command='\"PROGRAM ARGUMENT …\"' -e run=NAME)"
            )
        hostvars = task_vars["hostvars"]
        one_for_all({host: hostvars[host] for host in task_vars["ansible_play_hosts_all"]})
        workers = [worker(host, hostvars[host]) for host in task_vars["ansible_play_hosts_all"]]
        name = run_name(options["run"], path, command)
        sweep = None
        if options["sweep"]:
            file = find_config(options["sweep"], places, "sweep")
            sweep = (file, read_sweep(file))
        release = self._release(options) if options["code"] else ""
        return {
            "changed": False,
            "release": release,
            "command": command,
            "config": text,
            "config_path": str(path) if path else None,
            "parts": {host: asdict(part) for host, part in parts(workers, name, sweep).items()},
        }

    def _release(self, options: dict) -> str:
        """Stage the code and name its release; keep a copy for a later launch of the same."""
        tree, release = staged(options["code"], options["code_paths"])
        if options["keep"] and not self._task.check_mode:
            keep(tree, Path(options["keep"]).expanduser() / release)
        return release


def worker(host: str, variables) -> Worker:
    """Read a worker out of its host variables."""
    missing = [
        name
        for name in ("tpu_name", "tpu_worker_id", "tpu_worker_count", "tpu_leader_ip")
        if name not in variables
    ]
    if missing:
        raise RunError(
            f"{host} has no {', '.join(missing)}: is it of the inventory plugin tpufleet.core.tpu?"
        )
    return Worker(
        host=str(host),
        tpu=str(variables["tpu_name"]),
        index=int(variables["tpu_worker_id"]),
        count=int(variables["tpu_worker_count"]),
        leader=str(variables["tpu_leader_ip"]),
        multislice=str(variables.get("tpu_multislice") or ""),
        slice_id=int(variables.get("tpu_slice_id") or 0),
        slice_count=int(variables.get("tpu_slice_count") or 1),
        slice_leader=str(variables.get("tpu_slice_leader_ip") or ""),
        chip=int(variables.get("tpu_chip", -1)),
        chip_of=str(variables.get("tpu_chip_of") or ""),
    )
