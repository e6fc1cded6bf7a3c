"""What ansible-doc shows of tpufleet.core.watch_info; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: watch_info
short_description: Show when the last pass of the watch ended, and how
description:
  - Reads the heartbeats that the watch of every controller writes at the end of a pass.
extends_documentation_fragment:
  - tpufleet.core.fleet_state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Show the last pass of the watch
  tpufleet.core.watch_info:
    fleet_state: "{{ fleet_state }}"
"""

RETURN = r"""
passes:
  description: The last pass of each controller, the newest first, with C(controller), C(ended_at)
    (unix seconds), C(duration_s), C(outcome) (V(ok) or V(failed)) and C(error).
  returned: success
  type: list
  elements: dict
line:
  description: The newest pass in one line; empty if no pass has ended yet.
  returned: success
  type: str
"""
