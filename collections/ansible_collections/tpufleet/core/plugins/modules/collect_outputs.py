"""Documentation of tpufleet.core.collect_outputs for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: collect_outputs
short_description: Store the output of a worker's runs on the controller
description:
  - Copies what is new in the logs and metrics of runs that store their output in no bucket, and how
    they ended. What it has copied is kept when the worker is gone.
  - Does nothing while another process copies the output of the same worker.
options:
  directory:
    description: The directory on the controller.
    type: path
    required: true
  run:
    description: Only this run.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Store what the runs have written
  tpufleet.core.collect_outputs:
    directory: ~/.cache/tpufleet/outputs
  become: true
"""

RETURN = r"""
files:
  description: How many segments of logs and metrics, starts and ends of attempts were written.
  returned: success
  type: int
more:
  description: Whether there was more than one task copies, so that another task copies more. In
    check mode always false.
  returned: success
  type: bool
"""
