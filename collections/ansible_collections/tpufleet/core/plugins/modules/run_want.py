"""What ansible-doc shows of tpufleet.core.run_want; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_want
short_description: Record runs as wanted before their launch
description:
  - Writes each run's record with its next attempt, so that it may be launched at once. A run that
    is recorded as running, or that is done just so, is left alone; its workers are looked at first.
    Works on the controller alone.
options:
  plan:
    description: The answer of tpufleet.core.run_plan.
    type: dict
    required: true
  look_first:
    description: Record none of them yet.
    type: bool
    default: false
  same_place:
    description: Whether a run that has checkpoints in another place is refused, since nobody named
      one for this launch.
    type: bool
    default: false
extends_documentation_fragment: tpufleet.core.fleet_state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Record what is to run
  tpufleet.core.run_want:
    plan: "{{ plan }}"
    fleet_state: ~/fleet
  run_once: true
"""

RETURN = r"""
runs:
  description: By the run's name C(launch), whether it may be launched at once; C(was_wanted),
    whether it was wanted before; C(record) with its attempt; and C(port), the attempt's own.
  returned: success
  type: dict
starts:
  description: By the worker's name the module run's C(run), C(state) and C(launch).
  returned: success
  type: dict
"""
