"""Documentation of tpufleet.core.tpu_plan for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_plan
short_description: Show what create.yml would do, unwanted TPUs, and queued resources that only hold
  quota
description:
  - Lists the TPUs and queued resources of the inventory's zones (a partial list is an error),
    compares them with the fleet, counts chips by quota, and changes nothing.
  - Every existing TPU holds quota, and every queued resource until it is deleted, even after it
    failed or was preempted.
author: tpufleet maintainers
extends_documentation_fragment:
  - tpufleet.core.tpu_api
  - tpufleet.core.check_mode
options:
  fleet:
    description: The desired TPUs, as for M(tpufleet.core.tpu_fleet).
    type: list
    elements: raw
    required: true
  grant_ends:
    description: The last day on which you may use the project's TPUs, such as V(2026-12-31), if
      they were granted to you for a limited time. In the last 7 days RV(lines) has a warning, and
      after that day RV(errors) has a line. Neither fails the task.
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
  description: The TPUs that C(create.yml) would create, with zones, chips and workers.
  type: list
  elements: dict
  returned: success
disks:
  description: The data disks that C(create.yml) would create, with zone, size and type.
  type: list
  elements: dict
  returned: success
different:
  description: Existing TPUs that differ from the fleet in a setting that can't be changed. C(why)
    describes the difference.
  type: list
  elements: dict
  returned: success
unwanted:
  description: Existing TPUs that are not in the fleet.
  type: list
  elements: dict
  returned: success
dead_requests:
  description: Queued resources that failed or were preempted, and still hold quota. C(fix) is the
    command that deletes each.
  type: list
  elements: dict
  returned: success
waiting_requests:
  description: Queued resources that are waiting for their TPUs.
  type: list
  elements: dict
  returned: success
chips:
  description: The chips of each quota. C(held) by TPUs, C(wanted) for missing TPUs, and C(dead),
    held by the queued resources in RV(dead_requests).
  type: list
  elements: dict
  returned: success
errors:
  description: Problems that are more severe than a warning, such as a grant that has ended, one
    line each.
  type: list
  elements: str
  returned: success
days_left:
  description: The days until O(grant_ends).
  type: int
  returned: success
"""
