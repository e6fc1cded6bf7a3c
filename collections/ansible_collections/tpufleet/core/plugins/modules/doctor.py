"""What ansible-doc shows of tpufleet.core.doctor; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor
short_description: Look at everything that a fleet needs, from the controller, and change nothing
description:
  - Looks at versions, programs, credentials, the clock, the project, the API, zones, quota, the
    bucket, the fleet file, the key for ssh and the ways to the workers. Each check runs though
    another fails; what can't be seen because of another one says so.
  - Takes the inventory's variables (C(tpu_api), C(tpu_ssh), C(tpu_fleet), C(bucket),
    C(fleet_state), C(grant_ends)) itself, so that one that can't be evaluated is a finding.
  - Makes no request that changes anything.
author: tpufleet
attributes:
  check_mode:
    description: Never changes anything.
    support: full
  diff_mode:
    support: none
"""

EXAMPLES = r"""
- name: Look at everything
  tpufleet.core.doctor:
  register: doctor_seen
"""

RETURN = r"""
findings:
  description: A dictionary a check, with C(check), C(state) (V(ok), V(mend) or V(unseen)), C(said)
    and C(mend), the command that mends it.
  type: list
  elements: dict
  returned: always
lines:
  description: The same for people, a line each.
  type: list
  elements: str
  returned: always
"""
