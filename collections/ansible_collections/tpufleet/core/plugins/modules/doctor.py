"""Documentation of tpufleet.core.doctor for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor
short_description: Check, from the controller, everything that a fleet needs
description:
  - Checks versions, programs, credentials, the clock, the project, the API, zones, quota, the
    bucket, the fleet file, the ssh key and the connections to the workers. A failed check does not
    stop the others. If a problem prevents another check, that check is reported as C(unknown), with
    the problem.
  - Evaluates the inventory's variables (C(tpu_api), C(tpu_ssh), C(tpu_fleet), C(bucket),
    C(fleet_state), C(grant_ends)) itself, so that a variable that can't be
    evaluated becomes a finding.
  - Changes nothing, neither on the controller nor in the cloud.
author: tpufleet
extends_documentation_fragment: tpufleet.core.check_mode
"""

EXAMPLES = r"""
- name: Check everything
  tpufleet.core.doctor:
  register: doctor_result
"""

RETURN = r"""
findings:
  description: One dictionary for each check, with C(check), C(state) (V(ok), V(problem) or
    V(unknown)), C(message) and C(fix), the command that fixes it.
  type: list
  elements: dict
  returned: always
lines:
  description: The findings as text, one line each.
  type: list
  elements: str
  returned: always
"""
