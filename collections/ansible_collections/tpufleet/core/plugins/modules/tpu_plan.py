"""Documentation of tpufleet.core.tpu_plan for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_plan
short_description: Show what create.yml would do, unwanted TPUs, and requests that only hold quota
description:
  - Lists the TPUs and queued resources of the inventory's zones (a partial list is an error),
    compares them with the fleet, counts chips by quota, and changes nothing.
  - Every existing TPU holds quota, and every queued resource until it is deleted, even after it
    failed or was preempted.
author: tpufleet maintainers
extends_documentation_fragment: [tpufleet.core.tpu_api]
attributes:
  check_mode:
    description: Never changes anything.
    support: full
options:
  fleet:
    description: The desired TPUs, as for M(tpufleet.core.tpu_fleet).
    type: list
    elements: raw
    required: true
  grant_ends:
    description:
      The last day of the grant, such as V(2026-12-31). There is a warning in its last 7 days, and
      an error line, which stops nothing, after it.
    type: str
    default: ""
  bucket:
    description:
      The fleet's bucket, C(gs://name/prefix). There is a warning if it is in another region than
      the TPUs.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show what create.yml would do
  tpufleet.core.tpu_plan:
    api: "{{ tpu_api }}"
    fleet: "{{ tpu_fleet }}"
    grant_ends: "{{ grant_ends | default('') }}"
"""

RETURN = r"""
lines:
  description: The plan, one line for each entry.
  type: list
  elements: str
  returned: success
missing:
  description: The TPUs that would be created, with zones, chips and workers.
  type: list
  elements: dict
  returned: success
disks:
  description: The data disks that would be created, with zone, size and type.
  type: list
  elements: dict
  returned: success
different:
  description: TPUs that exist, but differ in what can't be changed; C(why) says how.
  type: list
  elements: dict
  returned: success
unwanted:
  description: TPUs that exist, but that the fleet does not name.
  type: list
  elements: dict
  returned: success
dead_requests:
  description: Queued resources that hold quota for nothing; C(fix) is the command to delete each.
  type: list
  elements: dict
  returned: success
waiting_requests:
  description: Queued resources that are waiting for their TPUs.
  type: list
  elements: dict
  returned: success
chips:
  description: Chips by quota, each with C(held), C(wanted) (missing) and C(dead).
  type: list
  elements: dict
  returned: success
errors:
  description: What is too late for a warning, one line each.
  type: list
  elements: str
  returned: success
days_left:
  description: The days until the grant ends.
  type: int
  returned: success
"""
