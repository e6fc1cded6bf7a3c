"""Documentation of tpufleet.core.run_follow for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_follow
short_description: Follow the logs of a run on all its workers until it ends
description:
  - Shows new lines of each worker's log. A line that several workers print is shown once, with the
    names of these workers. Ending the task with CTRL+C does not affect the run.
  - Follows all workers of the play at the same time, so Ansible needs a fork for each.
  - Retries a broken connection for two minutes, then fails.
options:
  run:
    description: The run's name. By default the active run on the worker, or else the run that ended
      last.
    type: str
  lines:
    description: How many of the existing log lines to show first.
    type: int
    default: 50
extends_documentation_fragment: tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Follow the logs
  tpufleet.core.run_follow:
    run: shakespeare
  become: true
"""

RETURN = r"""
state:
  description: The last status of the run on this worker, as text.
  returned: success
  type: str
run:
  description: The name of the run. Empty if O(run) is not set and this worker has no run.
  returned: success
  type: str
"""
