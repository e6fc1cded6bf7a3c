"""Module tpufleet.core.vpc_firewall: manage firewall rules (module_utils/cloud/firewall.py)."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vpc_firewall
short_description: Configure the VPC firewall of a fleet
description:
  - Manages firewall rules of a VPC network for all machines with the network tag O(tag). They allow
    ssh from O(ssh_from) only, allow everything from machines with the same tag, and deny all other
    inbound access.
  - The names of the fleet's rules are O(name) with V(-inside), V(-ssh), V(-ssh6), V(-rest) or
    V(-rest6) appended, and their descriptions name the fleet. A rule that was not created for this
    fleet is never changed; it is an error if it has one of these names. There is a warning for each
    other rule that takes precedence over the fleet's rules and allows access from every address.
  - Set the tag of a TPU with C(tags) in C(tpu_fleet). C(create.yml) adds it if C(fleet_firewall) is
    set.
  - Runs on the controller (C(hosts) or C(delegate_to) V(localhost)), with its Python.
author: tpufleet maintainers
extends_documentation_fragment:
  - tpufleet.core.tpu_api
  - tpufleet.core.diff_mode
attributes:
  diff_mode:
    description: Shows the rules before and after.
options:
  name:
    description: The prefix of the rules' names.
    type: str
    default: tpufleet
  fleet_name:
    description: The name of the fleet that the rules belong to. Rules of another fleet are not
      changed.
    type: str
    default: default
  state:
    description: Whether the rules should exist.
    type: str
    choices: [present, absent]
    default: present
  network:
    description: The VPC network. It can't be changed on an existing rule.
    type: str
    default: default
  tag:
    description: The network tag of the fleet's machines. By default O(name).
    type: str
  ssh_from:
    description:
      - The address ranges from which ssh is allowed, such as V(203.0.113.7/32). Without any, ssh is
        allowed only within the fleet.
      - The range of Google's Identity-Aware Proxy is V(35.235.240.0/20).
    type: list
    elements: str
    default: []
  mosh:
    description: Whether O(ssh_from) may also use mosh (UDP ports 60000 to 61000).
    type: bool
    default: false
  anyone:
    description: Whether O(ssh_from) may allow every address. Each such task shows a warning.
    type: bool
    default: false
  recreate:
    description: Whether to delete and recreate a rule that differs in a setting that can't be
      changed.
    type: bool
    default: false
  timeout:
    description: The time limit for all steps together, in seconds.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Allow ssh only from the office
  tpufleet.core.vpc_firewall:
    api: "{{ tpu_api }}"
    ssh_from: [203.0.113.0/28]

- name: Delete the rules
  tpufleet.core.vpc_firewall:
    api: "{{ tpu_api }}"
    state: absent
"""

RETURN = r"""
rules:
  description: The fleet's rules by name.
  type: dict
  returned: success
  sample: {tpufleet-ssh: {allowed: ["tcp:22"], source_ranges: [203.0.113.0/28]}}
msg:
  description: What the task did, in one line.
  type: str
  returned: always
reason:
  description: A code for the cause of the failure, such as C(different), C(configuration),
    C(forbidden).
  type: str
  returned: failure
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.cloud.firewall import desired_rules, ensure_rules
from ..module_utils.cloud.fleet_name import DEFAULT_FLEET_NAME
from ..module_utils.cloud.module import run_cloud_module
from ..module_utils.cloud.tpu_api import TpuApi


def _run(module: AnsibleModule, api: TpuApi) -> dict[str, Any]:
    params = module.params
    rules = desired_rules(
        params["name"],
        params["network"],
        params["tag"] or params["name"],
        params["ssh_from"],
        fleet=params["fleet_name"],
        mosh=params["mosh"],
        anyone=params["anyone"],
    )
    outcome = ensure_rules(
        api.compute,
        params["name"],
        rules if params["state"] == "present" else (),
        fleet=params["fleet_name"],
        timeout=params["timeout"],
        check=module.check_mode,
        recreate=params["recreate"],
    )
    for warning in outcome.warnings:
        module.warn(warning)
    return outcome.result() | {"rules": dict(outcome.after)}


def main() -> None:
    """Run the module: bring the fleet's firewall rules to the desired state."""
    run_cloud_module(
        _run,
        {
            "name": {"type": "str", "default": "tpufleet"},
            "fleet_name": {"type": "str", "default": DEFAULT_FLEET_NAME},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "network": {"type": "str", "default": "default"},
            "tag": {"type": "str"},
            "ssh_from": {"type": "list", "elements": "str", "default": []},
            "mosh": {"type": "bool", "default": False},
            "anyone": {"type": "bool", "default": False},
            "recreate": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 300},
        },
    )


if __name__ == "__main__":
    main()
