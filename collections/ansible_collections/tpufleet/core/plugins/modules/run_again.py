"""Documentation of tpufleet.core.run_again for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_again
short_description: Stop a run and launch it again with the settings in its record
description:
  - Uses the same code, config, command and TPU as the last launch. The run resumes from its newest
    checkpoint.
  - Calls the playbooks kill.yml and train.yml, and writes their results to O(log). If a worker is
    not set up for this version, or does not have the run's environment, also calls setup.yml and
    push.yml.
options:
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
    description: The log file, which gets a line before and after each call of ansible-playbook. The
      output of the playbooks is in the directory of the same name with the suffix C(.d).
    type: path
    required: true
  even_if_stopped:
    description:
      - Whether to launch a run that somebody stopped. By default such a run is refused, so that a
        scheduled restart does not resume it. A run that is done is always refused.
    type: bool
    default: false
extends_documentation_fragment:
  - tpufleet.core.run_name
  - tpufleet.core.fleet_state
  - tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Restart the run
  tpufleet.core.run_again:
    run: shakespeare
    fleet_state: "{{ fleet_state }}"
    project: "{{ playbook_dir }}/.."
    state_dir: ~/fleet
    log: ~/fleet/watch.log
"""

RETURN = r"""
msg:
  description: What the task did, in one line.
  returned: always
  type: str
"""
