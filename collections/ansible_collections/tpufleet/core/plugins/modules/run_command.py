#!/usr/bin/python
"""Module tpufleet.core.run_command: run a command with the code and environment of a run."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_command
short_description: Run a command with the release, environment and variables of a run
description:
  - Runs the command in O(launch) once on this worker, as the trainer's user, and returns what the
    command prints. Does not change the run itself, its files or its record.
  - Fails while another process holds the devices that the command needs. The command needs none if
    the launch or O(env) sets C(JAX_PLATFORMS) to platforms without C(tpu), such as C(cpu).
  - In check mode, only checks whether the command can run. A missing release is then no error,
    because the caller can install it before the command runs.
options:
  launch:
    description: The launch, as M(tpufleet.core.trainer_command) returns it.
    type: dict
    required: true
  process_id:
    description: The process id of this worker in the launch. The processes of a launch wait for
      each other, so call the module on all its workers at the same time.
    type: int
    default: 0
  env:
    description: The inventory's environment variables for trainers on this worker. Those of the
      launch override them.
    type: dict
    default: {}
  secrets:
    description: Environment variables of the command whose values Ansible masks in its output. Each
      value needs at least 8 characters and may not be a number.
    type: dict
    default: {}
    no_log: true
  device_glob:
    description: The glob pattern of the accelerators' device files. Empty for a worker without
      accelerators.
    type: str
    default: ""
  setup:
    description: The command that the error suggests if this worker does not have the trainer's user
      or the environment of the launch.
    type: str
    default: ansible-playbook setup.yml
  seconds:
    description: The time limit in seconds, after which the command is killed.
    type: int
    default: 3600
extends_documentation_fragment: tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Generate text
  tpufleet.core.run_command:
    launch: "{{ planned.launch }}"
  become: true
"""

RETURN = r"""
output:
  description: The lines that the command has printed to standard output, at most the last MiB.
    Empty in check mode.
  returned: success
  type: list
  elements: str
release_is_missing:
  description: Whether the release is missing or damaged on this worker.
  returned: check mode
  type: bool
"""

import pwd
import re
import subprocess
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.contract import USER
from ..module_utils.worker.launch_spec import InvalidLaunchError, fill_command
from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.process import Process, check_secrets, environment, secret_lines
from ..module_utils.worker.python_env import (
    EnvError,
    is_complete,
    last_lines,
    network_environment,
)
from ..module_utils.worker.run import RunError, WorkerPaths
from ..module_utils.worker.run_start import (
    free_device,
    held_device,
    process_of,
    release_problem,
    usable_cache,
)
from ..module_utils.worker.safe_files import is_directory, make_directory
from ..module_utils.worker.user_process import run_as_user

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def run(process: Process, paths: WorkerPaths, params: dict) -> list[str]:
    """Run the command and return the lines that it prints to standard output.

    ``params`` are the module's options. Raises RunError, OSError.
    """
    spec, account = process.spec, pwd.getpwnam(USER)
    for owned in (paths.home, paths.run_dir(spec.run)):
        if not is_directory(owned, account.pw_uid):
            make_directory(owned, account.pw_uid, 0o755)
    cache = usable_cache(spec.compile_cache, account)
    variables = environment(process, paths, network_environment({}), cache)
    with tempfile.TemporaryDirectory(prefix="tpufleet-") as folder:
        Path(folder).chmod(0o755)
        if spec.config is not None:
            config = Path(folder) / spec.config_name
            config.write_text(spec.config, encoding="utf-8")
            config.chmod(0o644)
            variables["TPUFLEET_CONFIG"] = str(config)
        command = fill_command(spec.command, variables)
        try:
            result = run_as_user(
                command,
                {**variables, **process.secrets},
                params["seconds"],
                params["device_glob"],
                str(paths.release(spec.release)),
            )
        except subprocess.TimeoutExpired:
            free_device(params["device_glob"])
            raise RunError(
                f"{' '.join(command[:4])}: did not end within {params['seconds']} s. "
                "Allow more time: -e seconds=SECONDS"
            ) from None
    if result.returncode != 0:
        error = _CONTROL.sub(" ", last_lines(result.stderr or result.stdout))
        raise RunError(f"{' '.join(command[:4])}: exit code {result.returncode}: {error}")
    return _CONTROL.sub(" ", result.stdout).splitlines()


def main() -> None:
    """Run the module: run the command, or in check mode only check whether it can run."""
    module = AnsibleModule(
        argument_spec={
            "launch": {"type": "dict", "required": True},
            "process_id": {"type": "int", "default": 0},
            "env": {"type": "dict", "default": {}},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "device_glob": {"type": "str", "default": ""},
            "setup": {"type": "str", "default": "ansible-playbook setup.yml"},
            "seconds": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    params, paths = module.params, WorkerPaths()
    module.no_log_values.update(secret_lines(params["secrets"]))
    try:
        check_secrets(params["secrets"])
        process = process_of(params, paths)
        spec = process.spec
        if not is_complete(paths.python_env(process.python_env)):
            raise RunError(
                f"the Python environment of run {spec.run} is missing. Create it: {params['setup']}"
            )
        if problem := held_device(process, params["device_glob"], paths):
            raise RunError(problem)
        release_error = release_problem(process, paths)
        if module.check_mode:
            module.exit_json(changed=False, output=[], release_is_missing=bool(release_error))
        if release_error:
            raise RunError(release_error)
        output = run(process, paths, params)
    except (RunError, EnvError, InvalidLaunchError) as error:
        module.fail_json(msg=str(error))
    except KeyError:
        module.fail_json(msg=f"this worker has no user {USER}. Set it up: {params['setup']}")
    except OSError as error:
        module.fail_json(msg=os_error_text(error))
    module.exit_json(changed=False, output=output)


if __name__ == "__main__":
    main()
