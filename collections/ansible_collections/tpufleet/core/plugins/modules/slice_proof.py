#!/usr/bin/python
"""Prove that a slice's workers compute together."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slice_proof
short_description: Prove by a tiny run that the workers of a slice compute together
description:
  - To be run on all workers of a slice at once. Each starts JAX, they meet at the leader, and add
    up one for each device of the slice.
  - A device that another process holds is named with its process, and not touched.
options:
  lock:
    description: The text of the lock file whose environment to take.
    type: str
    required: true
  coordinator:
    description: Where they meet, host:port.
    type: str
    required: true
  processes:
    description: How many workers the slice has.
    type: int
    required: true
  process:
    description: Which of them this one is.
    type: int
    required: true
  devices:
    description: How many devices the slice must have at the least.
    type: int
    default: 1
  platform:
    description: What JAX is to find here.
    type: str
    choices: [cpu, tpu, cuda]
    default: cpu
  device_glob:
    description: The accelerators' device files, to see who holds them.
    type: str
    default: ""
  seconds:
    description: How long it may take.
    type: int
    default: 120
  user:
    description: Who runs the trainer.
    type: str
    default: tpufleet
  root:
    description: Where the fleet lives on the worker.
    type: path
    default: /opt/tpufleet
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Prove the slice
  tpufleet.core.slice_proof:
    lock: "{{ lookup('ansible.builtin.file', 'requirements/worker-tpu.lock') }}"
    coordinator: "{{ tpu_leader_ip }}:8476"
    processes: "{{ tpu_worker_count }}"
    process: "{{ tpu_worker_id }}"
  become: true
"""

RETURN = r"""
devices:
  description: How many devices the slice has; 0 in a dry run.
  returned: success
  type: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.devices import holders
from ..module_utils.worker.python_env import (
    EnvError,
    env_id,
    lock_digest,
    prove_slice,
    python_minor,
)


def main() -> None:
    """Run, and compare what was added up with what should be."""
    module = AnsibleModule(
        argument_spec={
            "lock": {"type": "str", "required": True},
            "coordinator": {"type": "str", "required": True},
            "processes": {"type": "int", "required": True},
            "process": {"type": "int", "required": True},
            "devices": {"type": "int", "default": 1},
            "platform": {"type": "str", "choices": ["cpu", "tpu", "cuda"], "default": "cpu"},
            "device_glob": {"type": "str", "default": ""},
            "seconds": {"type": "int", "default": 120},
            "user": {"type": "str", "default": "tpufleet"},
            "root": {"type": "path", "default": "/opt/tpufleet"},
        },
        supports_check_mode=True,
    )
    options, root = module.params, Path(module.params["root"])
    if module.check_mode:
        module.exit_json(changed=False, devices=0)
    held = holders(options["device_glob"]) if options["device_glob"] else []
    if held:
        module.fail_json(
            msg=f"the slice can't be proven now: {held[0]}: "
            "wait for its run, or stop it: ansible-playbook playbooks/kill.yml -e run=NAME"
        )
    try:
        name = env_id(lock_digest(options["lock"]), python_minor(root / "bin/python"))
        place = (options["coordinator"], options["processes"], options["process"])
        told = prove_slice(
            root / "envs" / name, options["platform"], place, options["seconds"], options["user"]
        )
    except (EnvError, OSError, KeyError) as error:
        module.fail_json(msg=f"the slice is not proven: {error}: look at its other workers as well")
    if told["sum"] != told["devices"] or told["devices"] < options["devices"]:
        module.fail_json(
            msg=f"the slice has {told['devices']} devices and adds up to {told['sum']:.0f}, "
            f"{options['devices']} are expected: make the TPU anew"
        )
    module.exit_json(changed=False, devices=told["devices"])


if __name__ == "__main__":
    main()
