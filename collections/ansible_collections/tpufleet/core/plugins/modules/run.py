#!/usr/bin/python
"""Module tpufleet.core.run: check, start or stop a run's process on a worker."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run
short_description: Check, start or stop this worker's process of a run
description:
  - O(state=checked) returns the status of the run on this worker, and what blocks its start.
  - O(state=launched) returns the same. It starts the run if RV(status) is C(absent), nothing blocks
    the start and the release is not missing. The processes of an attempt wait for each other before
    any trainer starts.
  - O(state=started) starts the run unless this attempt is active already. Another active attempt,
    a blocker or, except in check mode, a missing release is an error.
  - O(state=stopped) sends TERM to all processes of the run on this worker, and KILL to those that
    have not ended after the time to save (variable C(run_stop_seconds)). A process that then still
    holds a device is an error.
options:
  state:
    description: The action to take, as described above.
    type: str
    choices: [checked, launched, started, stopped]
    required: true
  launch:
    description: The launch, as M(tpufleet.core.run_plan) returns it in C(launches)
      (module_utils/worker/launch_spec.py lists its fields). The module validates it, and writes it
      to C(launch.json) when it starts the run. Not needed to stop a run.
    type: dict
  process_id:
    description: The process id of this worker's process in the run.
    type: int
    default: 0
  finished_attempt:
    description: An attempt. The launch counts as done if the done marker in the run's checkpoint
      directory names this attempt. V(0) to ignore the marker.
    type: int
    default: 0
  finished_launch:
    description: When O(finished_attempt) was launched, in unix seconds. A done marker that is older
      belongs to an earlier run of the same name.
    type: float
    default: 0.0
  env:
    description: The inventory's environment variables for trainers on this worker. Those of the
      launch override them.
    type: dict
    default: {}
  secrets:
    description: Environment variables of the trainer whose values Ansible masks in its output. Each
      value needs at least 8 characters and may not be a number. The trainer gets them through a
      systemd credential.
    type: dict
    default: {}
    no_log: true
  token:
    description: The secret by which the processes of this attempt authenticate to each other.
      Without a secret they do not wait for each other.
    type: str
  preemptible:
    description: Whether the TPU is preemptible, so that its disks can be lost at any time. The run
      is then refused if its checkpoints are on these disks, unless the launch has
      C(volatile_checkpoints).
    type: bool
    default: false
  device_glob:
    description: The glob pattern of the accelerators' device files. Empty for a worker without
      accelerators.
    type: str
    default: ""
  image_error:
    description: The error with which the installation of the launch's image failed on this worker;
      empty if it did not fail.
    type: str
    default: ""
extends_documentation_fragment:
  - tpufleet.core.run_name
  - tpufleet.core.diff_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Stop the run
  tpufleet.core.run:
    run: shakespeare
    state: stopped
  become: true
"""

RETURN = r"""
status:
  description: C(running) or C(done) if that is the state of this launch, C(other) if another launch
    of the run is active or the run is stopping, else C(absent).
  returned: state is checked or launched
  type: str
blockers:
  description: What blocks the start on this worker, one line each, with the fix.
  returned: state is checked or launched
  type: list
  elements: str
release_is_missing:
  description: Whether the release is missing or damaged on this worker.
  returned: state is checked or launched
  type: bool
started:
  description: Whether this task has started the run's process; in check mode, whether it would.
  returned: state is checked or launched
  type: bool
info:
  description: The status of the run on this worker at the end of the task, as
    M(tpufleet.core.run_info) reports it. Empty if the worker's Python does not run.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.bucket_objects import request_failure
from ..module_utils.worker.done_marker import read_marker
from ..module_utils.worker.launch_spec import InvalidLaunchError
from ..module_utils.worker.locks import RUNS, RUNS_WAIT_SECONDS, one_at_a_time
from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.process import Process, check_secrets, secret_lines
from ..module_utils.worker.python_env import EnvError
from ..module_utils.worker.run import RunError, WorkerPaths, check_name, chip_of, overlap
from ..module_utils.worker.run_start import (
    END_STRAYS,
    blockers,
    free_device,
    image_problem,
    process_of,
    release_problem,
    start,
    status,
)
from ..module_utils.worker.run_state import RunState
from ..module_utils.worker.run_unit import launched_here, observe
from ..module_utils.worker.units import UNIT, active_runs, systemctl, unit_states


def checked(params: dict, paths: WorkerPaths, check: bool) -> dict:
    """Return the status of the launch on this worker, and its blockers.

    ``params`` are the module's options. In check mode (``check``), a missing image is no blocker,
    because check mode installs no image.
    """
    result = {"changed": False, "started": False, "blockers": [], "info": {}}
    result["release_is_missing"] = False
    try:
        process = process_of(params, paths)
    except EnvError as error:
        return {**result, "status": "absent", "blockers": [str(error)]}
    spec = process.spec
    units = unit_states([spec.run], others=True)
    observed = observe(spec.run, paths, unit=units[spec.run])
    launch_status = status(process, observed, paths)
    if launch_status == "absent" and params["finished_attempt"]:
        variables = {**process.variables(), **process.secrets}
        try:
            marker = read_marker(spec.checkpoints, spec.run, variables)
        except (OSError, ValueError) as error:
            cause = request_failure(error) if isinstance(error, OSError) else "malformed answer"
            problem = f"{spec.checkpoints}: cannot check whether the run is done ({cause})"
            return {**result, "status": launch_status, "info": observed, "blockers": [problem]}
        if marker and marker.is_of(params["finished_attempt"], params["finished_launch"]):
            launch_status = "done"
    if launch_status not in ("running", "done"):
        device_glob, is_preemptible = params["device_glob"], params["preemptible"]
        result["blockers"] = blockers(process, paths, device_glob, units, is_preemptible)
        if not check or params["image_error"]:
            image = image_problem(process, paths, params["image_error"])
            result["blockers"] += [image] if image else []
        result["release_is_missing"] = bool(release_problem(process, paths))
    return {**result, "status": launch_status, "info": observed}


def launched(params: dict, paths: WorkerPaths, check: bool) -> dict:
    """Start the process if its status is ``absent`` and nothing blocks it.

    Returns the result of ``checked`` and, after a start, that of ``begin``.
    """
    result = checked(params, paths, check)
    if result["status"] != "absent" or result["blockers"] or result["release_is_missing"]:
        return result
    process = process_of(params, paths)
    start_result = begin(process, paths, params["device_glob"], check, result["info"])
    return {**result, **start_result, "started": True}


def started(params: dict, paths: WorkerPaths, check: bool) -> dict:
    """Start the process unless this attempt is active.

    Raises RunError if another attempt is active or something blocks the start; the error names all
    blockers.
    """
    process = process_of(params, paths)
    spec = process.spec
    observed = observe(spec.run, paths)
    if status(process, observed, paths) == "running" and observed["attempt"] == spec.attempt:
        return {"changed": False, "info": observed}
    if observed["active"]:
        raise RunError(
            f"attempt {observed['attempt']} of run {spec.run} is {observed['state']} on this "
            f"worker. Stop it first: ansible-playbook playbooks/kill.yml -e run={spec.run}"
        )
    is_preemptible = params["preemptible"]
    problems = blockers(process, paths, params["device_glob"], is_preemptible=is_preemptible)
    if not check:  # check mode installs no release and no image, so they may be missing
        problems += filter(None, (release_problem(process, paths), image_problem(process, paths)))
    if problems:
        raise RunError("; ".join(problems))
    return begin(process, paths, params["device_glob"], check, observed)


def begin(
    process: Process, paths: WorkerPaths, device_glob: str, check: bool, observed: dict
) -> dict:
    """Start the process and return the module's result. With ``check``, starts nothing.

    ``observed`` is the observed state of the run before the start.
    """
    unit = None
    if not check:
        start(process, paths, device_glob)
        unit = {"ActiveState": "active"}  # start() has waited until the unit is active
    after = f"running, attempt {process.spec.attempt}\n"
    return {
        "changed": True,
        "info": observe(process.spec.run, paths, unit=unit),
        "diff": {"before": f"{observed['state']}\n", "after": after},
    }


def stopped(params: dict, paths: WorkerPaths, check: bool) -> dict:
    """Stop the run here if it is active. Raises RunError if a process still holds a device."""
    run = check_name(params["run"])
    observed = observe(run, paths)
    chip = chip_of(observed["launched"])
    if not observed["active"]:
        device_holders, lockfile_removed = free_device(
            params["device_glob"], check=check, chip=chip
        )
        if device_holders and not any(
            overlap(chip, chip_of(launched_here(other, paths))) for other in active_runs()
        ):
            raise RunError(
                f"run {run} is not running on this worker, but {device_holders[0]}. {END_STRAYS}"
            )
        return {"changed": lockfile_removed, "info": observed}
    before = f"{observed['state']}\n"
    if check:
        diff = {"before": before, "after": "stopped\n"}
        return {"changed": True, "info": observed, "diff": diff}
    # systemd sends SIGTERM, gives the trainer time to save, and then sends SIGKILL.
    systemctl("stop", UNIT.format(run))
    device_holders, _ = free_device(params["device_glob"], chip=chip)
    if device_holders:
        raise RunError(f"run {run} is stopped, but {device_holders[0]}. {END_STRAYS}")
    after = observe(run, paths, unit={"ActiveState": "inactive"})
    if after["state"] == RunState.LOST:
        after = observe(run, paths)  # exit.json is missing: ask systemd how the run ended
    diff = {"before": before, "after": f"{after['state']}\n"}
    return {"changed": True, "info": after, "diff": diff}


ACTIONS = {"checked": checked, "launched": launched, "started": started, "stopped": stopped}


def main() -> None:
    """Run the module: check, start or stop the run, under the worker's lock for runs."""
    module = AnsibleModule(
        argument_spec={
            "run": {"type": "str", "required": True},
            "state": {"type": "str", "choices": list(ACTIONS), "required": True},
            "launch": {"type": "dict"},
            "process_id": {"type": "int", "default": 0},
            "finished_attempt": {"type": "int", "default": 0},
            "finished_launch": {"type": "float", "default": 0.0},
            "env": {"type": "dict", "default": {}},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "token": {"type": "str", "no_log": True},
            "image_error": {"type": "str", "default": ""},
            "preemptible": {"type": "bool", "default": False},
            "device_glob": {"type": "str", "default": ""},
        },
        required_if=[("state", state, ["launch"]) for state in ("checked", "launched", "started")],
        supports_check_mode=True,
    )
    params, paths = module.params, WorkerPaths()
    module.no_log_values.update(secret_lines(params["secrets"]))
    try:
        check_secrets(params["secrets"])
        with one_at_a_time(RUNS, RUNS_WAIT_SECONDS):
            result = ACTIONS[params["state"]](params, paths, module.check_mode)
    except (RunError, EnvError, InvalidLaunchError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=os_error_text(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
