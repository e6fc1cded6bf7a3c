"""Documentation of tpufleet.core.watch; what it does is in plugins/action/watch.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: watch
short_description: Compare what runs are wanted with what is, once, and do the next thing for each
description:
  - Reads the records in O(fleet_state), the inventory and the workers' O(answers), and decides for
    each run whether to do nothing, to make its lost TPU anew, to replace one
      with a worker that stays away or fails again and again, to launch what stands still, to
    restart what hangs, to stop what was stopped, or to give up.
  - A TPU counts as lost only if the API says so when it is asked once more.
  - Acts by ansible-playbook, with the playbooks that a person would type. A lease in O(fleet_state)
    keeps a second controller from acting on the same run; it ends by itself if this one dies.
  - In check mode it only says what it would do.
options:
  answers:
    description: What M(tpufleet.core.run_info) said, by host.
    type: dict
    required: true
  project:
    description: The project's root, whose playbooks are used.
    type: path
    required: true
  releases:
    description: Where the controller keeps the releases that were launched.
    type: path
    required: true
  log:
    description: The file in which every action stands; what the playbooks said is beside it, in a
      directory of its name with C(.d).
    type: path
    required: true
  run:
    description: Only this run.
    type: str
    default: ""
  limits:
    description:
      - What to have patience with. Seconds are C(heartbeat), C(first_heartbeat), C(unreachable),
        C(settle), C(output) (how old the last line of a log may be where a trainer writes no
        heartbeat; 0, the default, is any age), C(first_backoff), C(longest_backoff); counts are
        C(crashes), C(preemptions) (0 is no limit), C(replacements), C(nans), C(same_worker).
    type: dict
    default: {}
extends_documentation_fragment: tpufleet.core.fleet_state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Do the next thing for each run
  tpufleet.core.watch:
    fleet_state: "{{ fleet_state }}"
    answers: "{{ hostvars | tpufleet.core.by_host(groups.tpu, 'run_look') }}"
    project: "{{ playbook_dir }}/.."
    releases: "{{ fleet_state }}/releases"
    log: "{{ fleet_state }}/watch.log"
"""

RETURN = r"""
runs:
  description: One dictionary a run, with run, state, why and action.
  returned: always
  type: list
  elements: dict
"""
