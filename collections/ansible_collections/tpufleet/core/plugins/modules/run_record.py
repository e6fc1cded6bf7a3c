"""What ansible-doc shows of tpufleet.core.run_record; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_record
short_description: Read or change what is wanted of a run, in the controller's memory
description:
  - One record a run, changed by compare-and-swap, so that two controllers that share
    O(fleet_state) can't overwrite each other. Works on the controller alone.
options:
  run:
    description: The run's name. Without one all records are read.
    type: str
  wanted:
    description:
      - V(running) writes a new attempt. V(stopped) and V(done) change a record that says
        otherwise, and make none where there is none; what is done stays so when it is stopped.
        Without it the record is only read.
    type: str
    choices: [running, stopped, done]
  same_attempt:
    description: With V(running), the attempt that runs is the one that is wanted; no new one is
      written.
    type: bool
    default: false
  fields:
    description: What else to keep in the record. Nothing secret.
    type: dict
    default: {}
  launch_failed:
    description: Record that a launch failed. The run is stopped unless O(was_wanted).
    type: bool
    default: false
  was_wanted:
    description: Whether the run was wanted before the launch that failed; then it stays wanted.
    type: bool
    default: false
  only_if_wanted:
    description: Fail if the run is not wanted to be running, now or any more.
    type: bool
    default: false
  fence:
    description: The number of the lease under which this change is made; fail if a later lease
      changed the record.
    type: int
    default: 0
  attempt:
    description: Change the record only if the run is still wanted to be running, in this attempt;
      V(0) for any.
    type: int
    default: 0
  error:
    description: With O(launch_failed), the error message for the record's history.
    type: str
    default: ""
extends_documentation_fragment: tpufleet.core.fleet_state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Record that the run is to stand still
  tpufleet.core.run_record:
    run: shakespeare
    fleet_state: "{{ fleet_state }}"
    wanted: stopped
  run_once: true
"""

RETURN = r"""
records:
  description: The records of all runs, by name.
  returned: no run is named
  type: dict
record:
  description: The record as it is now; empty if there is none.
  returned: a run is named
  type: dict
was_wanted:
  description: Whether the run was wanted before this change.
  returned: a run is named
  type: bool
port:
  description: The coordinator's port of the record's attempt.
  returned: success
  type: int
"""
