"""Documentation of tpufleet.core.collect_outputs for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: collect_outputs
short_description: Store the output of a worker's runs on the controller
description:
  - Copies the new log lines and metrics of runs that do not store their output in a bucket, and a
    record of how each attempt ended. The copy stays when the worker is deleted.
  - Does nothing while another process copies the output of the same worker.
options:
  directory:
    description: The directory on the controller for the copies.
    type: path
    required: true
  run:
    description: The only run whose output to copy. By default all runs of the worker.
    type: str
    default: ""
extends_documentation_fragment: tpufleet.core.check_mode
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
  description: The number of files written. Each is a segment of a log or of metrics, or describes
    the start or the end of an attempt.
  returned: success
  type: int
more:
  description: Whether the worker has more new output than one task copies. Repeat the task to copy
    the rest. Always false in check mode, and while another process copies the worker's output.
  returned: success
  type: bool
"""
