"""Documentation of tpufleet.core.collect_outputs for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: collect_outputs
short_description: Store the output of a worker's runs on the controller
description:
  - Copies new log lines and metrics, and how attempts ended, for runs that do not store their
    output in a bucket. The copy stays when the worker is deleted.
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
  description: The number of files written. Each has a piece of a log or of metrics, or says how an
    attempt began or ended.
  returned: success
  type: int
more:
  description: Whether the worker has more new output than one task copies. Repeat the task to copy
    the rest. Always false in check mode.
  returned: success
  type: bool
"""
