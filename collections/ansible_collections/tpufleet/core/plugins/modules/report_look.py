#!/usr/bin/python
"""The module tpufleet.core.report_look: returns a worker's runs and metrics for the report."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report_look
short_description: Return the status of a worker's runs with the points of their curves
description:
  - Returns the result of M(tpufleet.core.run_info), and at most a thousand points for each curve of
    a run's metrics. With more steps, each point is the mean of several. A repeated step replaces
    the earlier one.
options:
  run:
    description: The run's name. By default all runs that the worker knows.
    type: str
extends_documentation_fragment: tpufleet.core.run_places
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Read the curves of all runs
  tpufleet.core.report_look:
  become: true
"""

RETURN = r"""
runs:
  description: One dictionary for each run, as of M(tpufleet.core.run_info), with C(metrics), the
    points of loss, held-out loss and rate, and the starts of attempts.
  returned: success
  type: list
  elements: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.contract import ETC_DIR, STATE_DIR
from ..module_utils.worker.report_metrics import summary
from ..module_utils.worker.run import RunError, WorkerPaths, check_name
from ..module_utils.worker.run_unit import known_runs, observe


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "run": {"type": "str"},
            "state_dir": {"type": "path", "default": STATE_DIR},
            "etc": {"type": "path", "default": ETC_DIR},
        },
        supports_check_mode=True,
    )
    given = module.params
    paths = WorkerPaths(state=Path(given["state_dir"]), etc=Path(given["etc"]))
    try:
        known = known_runs(paths)
        names = [check_name(given["run"])] if given["run"] else known
        runs = [
            {**observe(name, paths), "metrics": summary(paths.run_dir(name))}
            for name in names
            if name in known
        ]
    except RunError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, runs=runs)


if __name__ == "__main__":
    main()
