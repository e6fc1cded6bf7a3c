"""What ansible-doc shows of tpufleet.core.report; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write one HTML page about the runs, to be opened from a file
description:
  - Shows of each run its loss and rate as curves, its attempts with all that happened to them, its
    goodput and its workers. The page holds all that it shows and loads nothing.
options:
  path:
    description: The page's file. Its directory is made if it is missing.
    type: path
    required: true
  fleet_state:
    description: A directory of the controller's or C(gs://bucket/prefix), where the records are.
    type: str
    required: true
  answers:
    description: What M(tpufleet.core.report_look) said, by host.
    type: dict
    required: true
  run:
    description: Only this run.
    type: str
    default: ""
  log_scale:
    description: Draw losses on a logarithmic axis.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Write the report
  tpufleet.core.report:
    path: report.html
    fleet_state: "{{ fleet_state }}"
    answers: "{{ hostvars | tpufleet.core.by_host(groups.tpu, 'report_seen') }}"
"""

RETURN = r"""
path:
  description: Where the page is.
  type: str
  returned: success
runs:
  description: The runs that are on it, the one that changed last first.
  type: list
  elements: str
  returned: success
"""
