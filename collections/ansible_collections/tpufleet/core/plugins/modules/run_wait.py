"""Documentation of tpufleet.core.run_wait for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_wait
short_description: Wait until a run has taken its first step, or has ended
description:
  - Polls each worker every few seconds. Stops waiting on all workers as soon as one of them has
    failed.
  - Retries a broken connection for two minutes, then fails. The run continues without the
    connection.
  - Check mode skips the task, because no run was started.
options:
  until:
    description: What to wait for.
    type: str
    choices: [first_step, done]
    default: first_step
  seconds:
    description: How long to wait at most, in seconds. With O(until=first_step), each heartbeat of
      the trainer starts this time again.
    type: int
    default: 600
  heartbeat:
    description:
      - Whether the trainer writes a heartbeat. If not, the run counts as started once its process
        has been running for a few seconds.
    type: bool
    default: true
  show:
    description: Whether to show the progress of this worker.
    type: bool
    default: false
  lines:
    description: How many of the last lines of the log to return.
    type: int
    default: 20
extends_documentation_fragment:
  - tpufleet.core.run_name
  - tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Wait for the first step
  tpufleet.core.run_wait:
    run: shakespeare
  become: true
"""

RETURN = r"""
outcome:
  description:
    - C(settled) if the run reached O(until) or ended. C(left) if another worker failed.
      C(timed_out) if the run has neither its first step nor a new heartbeat within O(seconds).
      C(continues) if it did not end within O(seconds), with O(until=done).
  returned: success
  type: str
info:
  description: The status of the run on this worker, as M(tpufleet.core.run_info) reports it.
  returned: success
  type: dict
"""
