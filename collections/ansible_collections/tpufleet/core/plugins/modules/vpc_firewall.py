"""The module tpufleet.core.vpc_firewall; what it does is in module_utils/cloud/vpc_firewall.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vpc_firewall
short_description: Let in to a fleet's machines what must come in, and nothing else
description:
  - Has firewall rules in the VPC network for all machines with the network tag O(tag), which let in
    ssh from O(ssh_from) alone, let in everything that comes from machines of the same tag, and deny
    all else.
  - Touches no rule that it didn't make. Its own are called O(name) with C(-ssh), C(-inside) or
    C(-rest) behind it, and say so in their description. A rule of others that lets everybody in
    before these are asked is warned about by name.
  - TPUs get the tag by C(tags) in C(tpu_fleet); C(create.yml) adds it where C(fleet_firewall) is
    said.
  - Runs where ansible-playbook runs (on localhost), with that Python.
author: tpufleet maintainers
extends_documentation_fragment: [tpufleet.core.tpu_api]
attributes:
  check_mode:
    description: Makes no request that changes anything, and foretells the same as the real run.
    support: full
  diff_mode:
    description: Shows the rules before and after.
    support: full
options:
  name:
    description: What the rules' names begin with.
    type: str
    default: tpufleet
  state:
    description: Whether the rules should be there or not.
    type: str
    choices: [present, absent]
    default: present
  network:
    description: The VPC network. It can't be changed on a rule that exists.
    type: str
    default: default
  tag:
    description: The network tag of the fleet's machines. By default O(name).
    type: str
  ssh_from:
    description:
      - The ranges that ssh may come from, such as V(203.0.113.7/32). None, and nobody gets in from
        outside the fleet.
      - Google's Identity-Aware Proxy comes from V(35.235.240.0/20).
    type: list
    elements: str
    default: []
  anyone:
    description: The whole world is meant, where O(ssh_from) is that. There is a warning each time.
    type: bool
    default: false
  recreate:
    description: Delete a rule that differs in what can't be changed, and make it anew.
    type: bool
    default: false
  timeout:
    description: How long all of it may take, in seconds.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Let nobody in to the fleet but by ssh from the office
  tpufleet.core.vpc_firewall:
    api: "{{ tpu_api }}"
    ssh_from: [203.0.113.0/28]

- name: Have the rules no more
  tpufleet.core.vpc_firewall:
    api: "{{ tpu_api }}"
    state: absent
"""

RETURN = r"""
rules:
  description: The fleet's rules by name, as they are now.
  type: dict
  returned: success
  sample: {tpufleet-ssh: {allowed: ["tcp:22"], source_ranges: [203.0.113.0/28]}}
msg:
  description: One line on what happened.
  type: str
  returned: always
reason:
  description: A word for what went wrong, such as C(different), C(configuration), C(forbidden).
  type: str
  returned: failure
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.cloud.cloud_module import result_of, run_cloud_module
from ..module_utils.cloud.compute_api import ComputeApi
from ..module_utils.cloud.firewall_rules import wanted_rules
from ..module_utils.cloud.tpu_api import TpuApi
from ..module_utils.cloud.vpc_firewall import ensure_rules


def _run(module: AnsibleModule, api: TpuApi) -> dict[str, Any]:
    given = module.params
    rules = wanted_rules(
        given["name"],
        given["network"],
        given["tag"] or given["name"],
        given["ssh_from"],
        anyone=given["anyone"],
    )
    done = ensure_rules(
        ComputeApi(api),
        given["name"],
        rules if given["state"] == "present" else (),
        timeout=given["timeout"],
        check=module.check_mode,
        recreate=given["recreate"],
    )
    for warning in done.warnings:
        module.warn(warning)
    return result_of(done) | {"rules": dict(done.after)}


def main() -> None:
    """Run as a module."""
    run_cloud_module(
        _run,
        {
            "name": {"type": "str", "default": "tpufleet"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "network": {"type": "str", "default": "default"},
            "tag": {"type": "str"},
            "ssh_from": {"type": "list", "elements": "str", "default": []},
            "anyone": {"type": "bool", "default": False},
            "recreate": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 300},
        },
    )


if __name__ == "__main__":
    main()
