"""Documentation of tpufleet.core.report for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write an HTML report of the runs, and publish it
description:
  - Shows a table of all runs, and for each run its curves, where its time went, its attempts with
    their events, and the log of a run that ended badly. Several runs can be compared in one chart.
  - All of it comes from the run's record and its stored output, so it shows runs whose TPU is gone.
  - The page is one file that loads nothing.
options:
  path:
    description: The file to write. Its directory is created if it is missing.
    type: path
    required: true
  fleet_state:
    description: Where the run records are, a directory of the controller or C(gs://bucket/prefix).
    type: str
    required: true
  directory:
    description: Where this controller stores the output of runs that do not store it in a bucket.
    type: str
    required: true
  cache:
    description: A directory for what has been read. It may be deleted at any time.
    type: path
    required: true
  answers:
    description: The results of M(tpufleet.core.run_info), by host.
    type: dict
    required: true
  tpu_states:
    description: The state of each TPU in the inventory, by name.
    type: dict
    default: {}
  run:
    description: Only this run.
    type: str
    default: ""
  publish:
    description: The object of a bucket to store the page in, too, such as
      C(gs://bucket/report.html). It is as private as the bucket. Empty for none.
    type: str
    default: ""
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
    directory: "{{ outputs_directory }}"
    cache: "{{ outputs_cache }}"
    answers: "{{ hostvars | tpufleet.core.by_host(groups.tpu, 'run_look') }}"
"""

RETURN = r"""
path:
  description: The written file.
  type: str
  returned: success
url:
  description: Where a browser shows the published page; empty if it was not published.
  type: str
  returned: success
runs:
  description: The runs in the report, the most recently changed first.
  type: list
  elements: str
  returned: success
"""
