#!/usr/bin/python
"""Say how the runs of a worker stand, with the points of their curves."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report_look
short_description: Say how the runs of a worker stand, with the points of their curves
description:
  - What M(tpufleet.core.run_info) says, and of each run's metrics at most a thousand points a
    curve. Where there are more steps, each point is the mean of some. Of a step that an attempt
    did again the later one counts.
options:
  run:
    description: One run's name. By default every run that is known on the worker.
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
  description: One dictionary a run, as M(tpufleet.core.run_info) has it, with C(metrics), the
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
    """Look, and read."""
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
