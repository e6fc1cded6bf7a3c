"""Documentation of tpufleet.core.report for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write an HTML report of the runs, and publish it
description:
  - Shows a table of all runs, and for each run its curves, how its time was spent, its attempts
    with their events, its workers, and the end of its log. Several runs can be compared in one
    chart.
  - The state of workers that can be reached comes from O(answers). Everything else comes from run
    records and stored output, so the page also shows runs whose TPU no longer exists.
  - The page is one file that loads no other files.
options:
  path:
    description: The file to write. Its directory is created if it is missing.
    type: path
    required: true
  directory:
    description: The directory with the output that this controller has collected from runs that do
      not store it in a bucket.
    type: str
    required: true
  cache:
    description: A cache directory for output that was read from a bucket. It can be deleted at any
      time.
    type: path
    required: true
  answers:
    description: The results of M(tpufleet.core.run_info), by host.
    type: dict
    required: true
  tpu_states:
    description: The state of each TPU in the inventory by id, and of this fleet's TPUs also by
      name.
    type: dict
    default: {}
  zones:
    description: The zones of the inventory; V(-) for all zones.
    type: list
    elements: str
    default: ["-"]
  unreachable:
    description: The zones of the inventory that did not answer. A TPU in one of them is not lost.
    type: list
    elements: str
    default: []
  run:
    description: The only run to report. By default all runs.
    type: str
    default: ""
  publish:
    description: A bucket object, such as C(gs://bucket/report.html), to which the page is also
      written. Its name must end with C(.html). Everyone who may read the bucket can read the page.
      Empty to write only the file.
    type: str
    default: ""
extends_documentation_fragment:
  - tpufleet.core.fleet_state
  - tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Write the report
  tpufleet.core.report:
    path: report.html
    fleet_state: "{{ fleet_state }}"
    directory: "{{ outputs_directory }}"
    cache: "{{ outputs_cache }}"
    answers: "{{ hostvars | tpufleet.core.by_host(groups.tpu, 'run_observed') }}"
"""

RETURN = r"""
path:
  description: The path of the written file.
  type: str
  returned: success
url:
  description: The URL of the published page for a browser. Empty if it was not published.
  type: str
  returned: success
runs:
  description: The runs in the report, the most recently changed first.
  type: list
  elements: str
  returned: success
"""
