"""Documentation of tpufleet.core.stored_output for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: stored_output
short_description: Read a run's stored output, even if its TPU no longer exists
description:
  - Reads the stored output of a run from the bucket that its record names, if any, and from
    O(directory). Needs no worker.
options:
  directory:
    description: The directory with the output that this controller has collected from runs that do
      not store it in a bucket.
    type: str
    required: true
  cache:
    description: A cache directory for output that was read from a bucket. It can be deleted at any
      time.
    type: path
    required: true
  lines:
    description: How many lines to return from the end of each log of the last attempt. They are in
      RV(answers).
    type: int
    default: 0
  to:
    description:
      - A directory to copy the output to. Each process of each attempt gets a directory
        C(ATTEMPT/PROCESS) with those of the files C(log), C(metrics.jsonl), C(start.json) and
        C(exit.json) that are stored.
    type: path
  bundle:
    description: Whether to also write C(record.json) to O(to), the run's record without environment
      variables.
    type: bool
    default: false
extends_documentation_fragment:
  - tpufleet.core.run_name
  - tpufleet.core.fleet_state
  - tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Read the last lines of a run
  tpufleet.core.stored_output:
    run: shakespeare
    fleet_state: gs://bucket/fleet
    directory: ~/.cache/tpufleet/outputs
    cache: ~/.cache/tpufleet/cache
    lines: 50
"""

RETURN = r"""
location:
  description: Where the run's output is stored; empty if the run has no record.
  returned: success
  type: str
attempt:
  description: The number of the last attempt that has stored output; null if nothing is stored.
  returned: success
  type: int
answers:
  description: How each process of this attempt ended, with the last lines of its log, by worker,
    in the format of the result of M(tpufleet.core.run_info). Empty if nothing is stored.
  returned: success
  type: dict
workers:
  description: The inventory names of the workers of the last recorded attempt.
  returned: success
  type: list
  elements: str
files:
  description: The copied files, relative to O(to), without those that were there before with the
    same content. In check mode, the files to copy.
  returned: success
  type: list
  elements: str
"""
