"""What ansible-doc shows of tpufleet.core.run_wait; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_wait
short_description: Wait until a run has taken its first step, or has ended
description:
  - Asks each worker every few seconds, shows how far the run is, and leaves all of them as soon as
    one of the workers has failed.
  - A connection that breaks is tried again for two minutes; what the run does meanwhile does not
    depend on it.
options:
  until:
    description: What to wait for.
    type: str
    choices: [first_step, done]
    default: first_step
  seconds:
    description: How long to wait at the most.
    type: int
    default: 600
  heartbeat:
    description:
      - Whether the trainer must write a heartbeat. If not, having been active for 30 seconds
        without one is taken for its first step.
    type: bool
    default: true
  show:
    description: Whether to print how far this worker is.
    type: bool
    default: false
  lines:
    description: How many of the log's last lines to bring.
    type: int
    default: 20
extends_documentation_fragment: tpufleet.core.run_name
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
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
    - C(settled), C(left) because another worker failed, C(time is up) before the first step, or
      C(goes on) where the end was waited for and has not come.
  returned: success
  type: str
info:
  description: How the run stands here.
  returned: success
  type: dict
"""
