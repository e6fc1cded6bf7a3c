"""Documentation of tpufleet.core.tpu_plan for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_plan
short_description: Show what create.yml would do, unwanted TPUs, and queued resources that only hold
  quota
description:
  - Lists the TPUs and queued resources of the inventory's zones, compares them with the fleet, and
    counts chips by quota. Changes nothing. A partial list is an error.
  - Every existing TPU holds quota. Every queued resource holds quota until it is deleted, even
    after it failed or was preempted.
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
      after that day RV(errors) has an error. The task does not fail in either case.
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
errors:
  description: Problems that are more severe than a warning, such as a grant that has ended, one
    line each.
  type: list
  elements: str
  returned: success
"""
