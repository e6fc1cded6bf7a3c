"""Documentation of tpufleet.core.run_again for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_again
short_description: Stop a run and launch it again as its record says
description:
  - Same code, config, command and TPU as at its last launch; it goes on from its checkpoint.
  - Acts by kill.yml and train.yml, each with a line in O(log).
options:
  project:
    description: The project's root, whose playbooks are used.
    type: path
    required: true
  kept:
    description: The controller's state directory, with the releases and lock files of launches.
    type: path
    required: true
  fleet_name:
    description: The name of this fleet, which its TPUs have as the label C(tpufleet-fleet).
    type: str
    default: default
  log:
    description: The file in which every action stands.
    type: path
    required: true
  even_if_stopped:
    description:
      - Launch a run that somebody stopped. Without it such a run is refused, so that a timer does
        not bring it back. A run that is done is always refused.
    type: bool
    default: false
extends_documentation_fragment:
  - tpufleet.core.run_name
  - tpufleet.core.fleet_state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Restart the run
  tpufleet.core.run_again:
    run: shakespeare
    fleet_state: "{{ fleet_state }}"
    project: "{{ playbook_dir }}/.."
    kept: "{{ fleet_state }}"
    log: "{{ fleet_state }}/watch.log"
"""

RETURN = r"""
msg:
  description: What was done.
  returned: always
  type: str
"""
