"""Documentation of tpufleet.core.run_record for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_record
short_description: Read run records, or change the desired state of a run
description:
  - Runs on the controller only. There is one record for each run. It is changed by
    compare-and-swap, so two controllers that share O(fleet_state) cannot overwrite each other's
    changes.
options:
  run:
    description: The run's name. Without one, all records are read.
    type: str
  wanted:
    description: The desired state of O(run) to record. A run without a record gets none, and a run
      that is done stays done. Without this option, the module only reads.
    type: str
    choices: [stopped, done]
  attempt:
    description: Change the record only if this is the run's last attempt. V(0) for any attempt.
    type: int
    default: 0
  fence:
    description: The number that the watch or M(tpufleet.core.run_again) wrote into the record for
      its action. The module fails if the record has a greater number, because another controller
      has then acted on the run, or if the record is missing. V(0) for an action of a user, which is
      never refused.
    type: int
    default: 0
  passes:
    description: Whether to also read when the last pass of the watch ended on each controller.
    type: bool
    default: false
extends_documentation_fragment:
  - tpufleet.core.fleet_state
  - tpufleet.core.diff_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Record the run as stopped
  tpufleet.core.run_record:
    run: shakespeare
    fleet_state: "{{ fleet_state }}"
    wanted: stopped
  run_once: true
"""

RETURN = r"""
records:
  description: The valid records of all runs, by name. An invalid record causes a warning.
  returned: no run is named
  type: dict
record:
  description: The record with the change, also in check mode, which does not write it. Empty if
    there is no record, or if O(wanted=stopped) and the record is invalid.
  returned: a run is named
  type: dict
exists:
  description: Whether the run had a record before this change, even an invalid one.
  returned: a run is named
  type: bool
others:
  description: The names of the runs that have a record; empty if they cannot be listed.
  returned: the run has no record, except with O(wanted=done)
  type: list
  elements: str
unusable:
  description: Whether the record is not a JSON object or has an invalid field.
  returned: failed
  type: bool
passes:
  description: The last pass of each controller, the newest first, with C(controller), C(ended_at)
    (unix seconds), C(duration_s), C(outcome) (V(ok) or V(failed)) and C(error).
  returned: O(passes)
  type: list
  elements: dict
last_pass:
  description: The newest pass in one line; empty if no pass has ended yet, or if the passes can't
    be read.
  returned: O(passes)
  type: str
"""
