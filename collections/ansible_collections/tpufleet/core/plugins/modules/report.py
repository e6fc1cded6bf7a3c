"""Documentation of tpufleet.core.report for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write an HTML report of the runs
description:
  - Shows for each run curves of loss and rate, the attempts with their events, goodput and the
    workers. The page is one file that loads nothing.
options:
  path:
    description: The file to write. Its directory is created if it is missing.
    type: path
    required: true
  fleet_state:
    description: Where the run records are, a directory of the controller or C(gs://bucket/prefix).
    type: str
    required: true
  answers:
    description: The results of M(tpufleet.core.report_look), by host.
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
  description: The written file.
  type: str
  returned: success
runs:
  description: The runs in the report, the most recently changed first.
  type: list
  elements: str
  returned: success
"""
