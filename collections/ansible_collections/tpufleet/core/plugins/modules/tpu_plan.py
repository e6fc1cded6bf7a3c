"""What ansible-doc shows of tpufleet.core.tpu_plan; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_plan
short_description: Say what create.yml would do, what is unwanted, and what holds quota for nothing
description:
  - Lists the TPUs and queued resources of the inventory's zones whole (a partial list is an error),
    compares them with the fleet, counts chips by quota, and changes nothing.
  - Quota is held by every TPU that lives, and by every queued resource until it is deleted, though
    it failed or was preempted.
author: tpufleet maintainers
extends_documentation_fragment: [tpufleet.core.tpu_api]
attributes:
  check_mode:
    description: Never changes anything.
    support: full
options:
  fleet:
    description: The TPUs that are wanted, as for M(tpufleet.core.tpu_fleet).
    type: list
    elements: raw
    required: true
  grant_ends:
    description:
      The last day of the grant, such as V(2026-12-31). A warning from 7 days on, and an error's
      line after it, which stops nothing.
    type: str
    default: ""
  bucket:
    description:
      The fleet's bucket, C(gs://name/prefix). A warning if it is in another region than the TPUs.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: See what create.yml would do
  tpufleet.core.tpu_plan:
    api: "{{ tpu_api }}"
    fleet: "{{ tpu_fleet }}"
    grant_ends: "{{ grant_ends | default('') }}"
"""

RETURN = r"""
lines:
  description: The plan for people, a line each.
  type: list
  elements: str
  returned: success
missing:
  description: The TPUs that would be made, with zones, chips and workers.
  type: list
  elements: dict
  returned: success
disks:
  description: The data disks that would be made, with zone, size and type.
  type: list
  elements: dict
  returned: success
different:
  description: TPUs that are there, but differ in what can't be changed; C(why) says how.
  type: list
  elements: dict
  returned: success
unwanted:
  description: TPUs that are there, but that the fleet doesn't name.
  type: list
  elements: dict
  returned: success
dead_requests:
  description: Queued resources that hold quota for nothing; C(mend) is the command to remove each.
  type: list
  elements: dict
  returned: success
waiting_requests:
  description: Queued resources that wait for their TPUs.
  type: list
  elements: dict
  returned: success
chips:
  description: Chips by quota, each with C(held), C(wanted) (missing) and C(dead).
  type: list
  elements: dict
  returned: success
errors:
  description: What is too late to be warned about, a line each.
  type: list
  elements: str
  returned: success
days_left:
  description: The days until the grant ends, where O(grant_ends) is given.
  type: int
  returned: success
"""
