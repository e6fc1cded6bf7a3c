"""The whole of tpufleet.core.run_plan: it only reads what the controller has."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.run import RunError
from ..module_utils.run_plan import Worker, find_config, parts, read_config, run_name, words


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
            }
        )
        try:
            return self._plan(options, task_vars or {})
        except RunError as error:
            raise AnsibleActionFail(str(error)) from None

    def _plan(self, options: dict, task_vars: dict) -> dict:
        command = words(options["command"], options["set"])
        path, text = None, None
        if options["config"]:
            places = [Path.cwd(), Path(options["project"]).resolve()]
            path = find_config(options["config"], places).resolve()
            text = read_config(path, strict=not options["command"])
        elif not options["command"]:
            raise RunError(
                "say what to run: -e config=FILE (or -e command='PROGRAM ARGUMENT …' -e run=NAME)"
            )
        hostvars = task_vars["hostvars"]
        workers = [worker(host, hostvars[host]) for host in task_vars["ansible_play_hosts_all"]]
        name = run_name(options["run"], path, command)
        return {
            "changed": False,
            "command": command,
            "config": text,
            "config_path": str(path) if path else None,
            "parts": {host: asdict(part) for host, part in parts(workers, name).items()},
        }


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
    )
