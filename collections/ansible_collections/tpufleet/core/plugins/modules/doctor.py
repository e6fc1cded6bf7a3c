"""Documentation of tpufleet.core.doctor for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor
short_description: Check, from the controller, everything that a fleet needs
description:
  - Checks versions, programs, credentials, the clock, the project, the Cloud TPU API, zones, quota,
    the bucket and how long it keeps stored output, the fleet file, C(grant_ends), the ssh key,
    secrets, foreign TPUs, the last passes of the watch, and the connections to the workers.
    docs/doctor.md describes the checks.
  - A failed check does not stop the others. If a problem makes another check impossible, the state
    of that check is V(unknown), with the reason.
  - Evaluates the inventory's variables itself, such as C(tpu_api), C(tpu_fleet) and C(bucket), so
    that a variable that can't be evaluated becomes a finding.
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
  description: The results of the checks, each a dictionary with C(check), C(state) (V(ok),
    V(problem) or V(unknown)), C(message) and C(fix). The fix is a command or an instruction. It is
    empty if there is nothing to fix, or if the message says how.
  type: list
  elements: dict
  returned: always
lines:
  description: The findings as text, one line each.
  type: list
  elements: str
  returned: always
"""
