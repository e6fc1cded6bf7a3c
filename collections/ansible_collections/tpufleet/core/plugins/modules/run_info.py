#!/usr/bin/python
"""Module tpufleet.core.run_info: return the status of the runs on a worker."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_info
short_description: Return the status of a worker's runs, and optionally wait until they start or end
description:
  - Reads the state of the systemd unit, the heartbeat, how the last attempt ended, and the end of
    the log.
options:
  run:
    description: The name of a run. By default all runs that were launched on the worker.
    type: str
  lines:
    description: How many of the last lines of the log to return.
    type: int
    default: 0
  until:
    description:
      - What to wait for. V(now) does not wait. V(first_step) waits until the heartbeat has a step
        or the run has ended, V(done) until the run has ended. Not used with O(since).
    type: str
    choices: [now, first_step, done]
    default: now
  wait:
    description: The maximum time in seconds to wait for O(until) or, with O(since), for new log
      lines.
    type: int
    default: 8
  since:
    description:
      - A byte offset in the log. The module waits for new lines or the end of the run. Then it
        returns the complete lines from this offset on, at most 256 KiB, instead of the last lines.
        A negative number starts at the last O(lines). C(log_end) in RV(runs) is the offset for the
        next call. Needs O(run).
    type: int
  progress:
    description: Whether to return how much time the active run, or else the run that ended last,
      spent in steps that no later attempt repeated. Goodput is computed from this time.
    type: bool
    default: false
  device_glob:
    description: A glob pattern of device files. RV(holders) lists the processes that have one of
      them open.
    type: str
    default: ""
  state_dir:
    description: The directory on the worker for the files that runs write, such as logs and
      heartbeats.
    type: path
    default: /var/lib/tpufleet
  etc:
    description: The directory on the worker for the files that the systemd units of runs read.
    type: path
    default: /etc/tpufleet
extends_documentation_fragment: tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Read the status of the run
  tpufleet.core.run_info:
    run: shakespeare
    lines: 20
  become: true
"""

RETURN = r"""
runs:
  description:
    - One dictionary for each run.
    - C(state) and C(reason_code) are codes that module_utils/worker/run_state.py lists.
      C(exit_code), C(signal), C(ended_at) and C(error) describe how the last attempt ended. If the
      end of another worker's process stopped the trainer here, C(peer) is that worker and
      C(peer_exit_code) the exit code of its process.
    - Other keys are C(run), C(active), C(attempt), C(release), C(is_set_up), C(has_environment),
      C(launched), C(waiting_for), C(heartbeat), C(heartbeat_age), C(output_age), C(log), with
      O(since) also C(log_end), and with O(progress) also C(progress).
  returned: success
  type: list
  elements: dict
holders:
  description: The processes that have a device open, one line each.
  returned: success
  type: list
  elements: str
settled:
  description: Whether all runs have reached O(until) or ended. With O(since), whether the run has
    new log lines or has ended.
  returned: success
  type: bool
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.contract import ETC_DIR, STATE_DIR
from ..module_utils.worker.devices import holders
from ..module_utils.worker.run import RunError, WorkerPaths, check_name, current_runs
from ..module_utils.worker.run_log import log_since, log_start
from ..module_utils.worker.run_progress import progress
from ..module_utils.worker.run_unit import known_runs, observe
from ..module_utils.worker.units import unit_states

POLL_SECONDS = 0.5


def settled(observed: dict, until: str) -> bool:
    """Return whether to stop polling: the run has reached ``until``, or is not active.

    ``observed`` is the observed state of the run on this worker.
    """
    if until == "now" or not observed["active"]:
        return True
    step = (observed["heartbeat"] or {}).get("step")
    return until == "first_step" and isinstance(step, int) and step >= 1


def observe_with_log(run: str, paths: WorkerPaths, params: dict, unit: dict[str, str]) -> dict:
    """Return the observed state of a run, with the log lines that the options request.

    ``params`` are the module's options, and ``unit`` has the properties that systemd reports of the
    run's unit.
    """
    if params["since"] is None:
        return observe(run, paths, params["lines"], unit)
    # Read the state before the log: if the run was inactive, the log is complete. The next call
    # reads the lines that an active run writes meanwhile.
    observed, log = observe(run, paths, unit=unit), paths.run_dir(run) / "log"
    since = params["since"] if params["since"] >= 0 else log_start(log, params["lines"])
    lines, end = log_since(log, since)
    return {**observed, "log": lines, "log_end": end}


def main() -> None:
    """Run the module: poll the status until the requested state is reached or time is up."""
    module = AnsibleModule(
        argument_spec={
            "run": {"type": "str"},
            "lines": {"type": "int", "default": 0},
            "until": {"type": "str", "choices": ["now", "first_step", "done"], "default": "now"},
            "wait": {"type": "int", "default": 8},
            "since": {"type": "int"},
            "progress": {"type": "bool", "default": False},
            "device_glob": {"type": "str", "default": ""},
            "state_dir": {"type": "path", "default": STATE_DIR},
            "etc": {"type": "path", "default": ETC_DIR},
        },
        required_by={"since": "run"},
        supports_check_mode=True,
    )
    params = module.params
    paths = WorkerPaths(state=Path(params["state_dir"]), etc=Path(params["etc"]))
    deadline = time.monotonic() + params["wait"]
    try:
        names = [check_name(params["run"])] if params["run"] else known_runs(paths)
        while True:
            units = unit_states(names)
            runs = [observe_with_log(name, paths, params, units[name]) for name in names]
            reached = all(settled(observed, params["until"]) for observed in runs)
            if params["since"] is not None:
                reached = any(observed["log"] or not observed["active"] for observed in runs)
            if reached or time.monotonic() >= deadline:
                break
            time.sleep(POLL_SECONDS)
    except RunError as error:
        module.fail_json(msg=str(error))
    for observed in current_runs(runs) if params["progress"] else []:
        observed["progress"] = progress(paths.run_dir(observed["run"]))
    device_holders = holders(params["device_glob"])
    module.exit_json(changed=False, runs=runs, holders=device_holders, settled=reached)


if __name__ == "__main__":
    main()
