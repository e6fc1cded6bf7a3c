"""Documentation of tpufleet.core.watch for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: watch
short_description: Compare the desired with the observed state of each run once, and act
description:
  - Reads the records in O(fleet_state), the inventory and the workers' O(answers). Then decides for
    each run whether to do nothing, to recreate its lost TPU, to replace its TPU because a worker
    cannot be reached or is repeatedly the first to fail, to launch or restart the run, to stop it,
    to record it as done, or to give up.
  - The TPU of a run is the one with the zone and the id in the run's record, or a later TPU of the
    same name that has this fleet's label. No other TPU is changed for a run.
  - A TPU counts as lost only if the API confirms it.
  - Without O(run), also deletes TPUs of the variable C(tpu_fleet) that were idle for their
    C(idle_delete_after), deletes cached releases that no run needs, and archives the records of
    runs that ended long ago.
  - Acts by calling the same playbooks as a user would. A lease in O(fleet_state) keeps a second
    controller from acting on the same TPU. The lease expires if this controller fails.
  - An invalid record is reported as failed and skipped. While a record is invalid, no idle TPU and
    no cached release is deleted.
  - In check mode the module only shows what it would do.
options:
  answers:
    description: The results of M(tpufleet.core.run_info), by host.
    type: dict
    required: true
  asked_at:
    description: The time before the first worker was queried, in unix seconds.
    type: float
    required: true
  project:
    description: The directory of tpufleet on the controller, whose playbooks are called.
    type: path
    required: true
  state_dir:
    description: The controller's state directory, with the releases and lock files of launches.
    type: path
    required: true
  fleet_name:
    description: The name of this fleet. It is the value of the label C(tpufleet-fleet) on its TPUs.
    type: str
    default: default
  log:
    description: The log file, which gets a line for each action. The playbooks' output is in the
      directory of the same name with C(.d) appended.
    type: path
    required: true
  run:
    description: The name of the only run to act on. By default all runs.
    type: str
    default: ""
  limits:
    description:
      - How long the watch waits, and how often it repeats an action. docs/runs.md describes each
        limit.
      - Limits in seconds are C(heartbeat), C(first_heartbeat), C(unreachable), C(settle),
        C(first_backoff), C(longest_backoff) and C(output). C(output) is the maximum age of the last
        log line of a trainer that writes no heartbeat; 0, the default, means no limit.
      - Limits that are counts are C(crashes), C(preemptions), C(replacements), C(nans) and
        C(same_worker). For C(crashes), C(preemptions) and C(same_worker), 0 means no limit.
    type: dict
    default: {}
extends_documentation_fragment:
  - tpufleet.core.fleet_state
  - tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Decide about each run and act
  tpufleet.core.watch:
    fleet_state: "{{ fleet_state }}"
    answers: "{{ hostvars | tpufleet.core.by_host(groups.tpu, 'run_observed') }}"
    project: "{{ playbook_dir }}/.."
    asked_at: "{{ watch_asked_at }}"
    state_dir: "{{ local_state_dir }}"
    log: "{{ local_state_dir }}/watch.log"
"""

RETURN = r"""
runs:
  description:
    - A dictionary for each run, with C(run), C(state), C(causes), C(action), C(failed), C(error)
      and C(text). C(text) describes the outcome in one line.
  returned: always
  type: list
  elements: dict
lines:
  description: C(text) of each run, or one line which says that no run has a record.
  returned: always
  type: list
  elements: str
deleted_tpus:
  description: The names of the TPUs that were deleted because they were idle; in check mode, of
    those that would be deleted.
  returned: always
  type: list
  elements: str
"""
