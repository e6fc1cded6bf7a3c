#!/usr/bin/python
"""Module tpufleet.core.slice_proof: check that the workers of a slice can compute together."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slice_proof
short_description: Check that the workers of a slice can compute together
description:
  - Run this module on all workers of a slice at the same time. Each worker starts JAX and connects
    to the leader. Then every device of the slice adds 1 to a sum.
  - If another process holds a device, the module fails with the name of that process and does not
    use the devices.
options:
  lock:
    description: The text of the lock file whose environment the check uses.
    type: str
    required: true
  coordinator:
    description: The address (host:port) of the JAX coordinator on the leader.
    type: str
    required: true
  processes:
    description: The number of workers of the slice.
    type: int
    required: true
  process:
    description: The index of this worker.
    type: int
    required: true
  devices:
    description: The minimum number of devices that the slice must have.
    type: int
    default: 1
  command:
    description: The command that computes the sum, as a list of words. The environment variable
      C(TPUFLEET_PROOF) has the coordinator, the number of workers, this worker's index and the
      time limit, as a JSON list. The last line of output must be JSON with C(devices) and C(sum).
    type: list
    elements: str
    required: true
  platform:
    description: The platform that JAX must find.
    type: str
    choices: [cpu, tpu, cuda]
    default: cpu
  device_glob:
    description: The glob pattern of the accelerators' device files.
    type: str
    default: ""
  seconds:
    description: How long the check may take, in seconds.
    type: int
    default: 120
extends_documentation_fragment: tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Check the slice
  tpufleet.core.slice_proof:
    lock: "{{ lookup('ansible.builtin.file', 'requirements/worker-tpu.lock') }}"
    coordinator: "{{ tpu_leader_ip }}:8475"
    processes: "{{ tpu_worker_count }}"
    process: "{{ tpu_worker_id }}"
    command:
      - python
      - -c
      - "{{ lookup('ansible.builtin.file', 'roles/jax/files/prove_slice.py') }}"
    platform: tpu
    device_glob: "{{ tpu_device_glob }}"
  become: true
"""

RETURN = r"""
devices:
  description: The number of devices of the slice; 0 in check mode.
  returned: success
  type: int
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.devices import holders
from ..module_utils.worker.env_proof import Worker, prove_slice
from ..module_utils.worker.python_env import EnvError, env_id, lock_digest, python_minor
from ..module_utils.worker.run import WorkerPaths


def main() -> None:
    """Run the module: let each device add 1 to a sum, which must equal the number of devices."""
    module = AnsibleModule(
        argument_spec={
            "lock": {"type": "str", "required": True},
            "coordinator": {"type": "str", "required": True},
            "processes": {"type": "int", "required": True},
            "process": {"type": "int", "required": True},
            "devices": {"type": "int", "default": 1},
            "command": {"type": "list", "elements": "str", "required": True},
            "platform": {"type": "str", "choices": ["cpu", "tpu", "cuda"], "default": "cpu"},
            "device_glob": {"type": "str", "default": ""},
            "seconds": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    options, paths = module.params, WorkerPaths()
    if module.check_mode:
        module.exit_json(changed=False, devices=0)
    device_holders = holders(options["device_glob"]) if options["device_glob"] else []
    if device_holders:
        module.fail_json(
            msg=f"the slice cannot be checked now ({device_holders[0]}). "
            "Wait until its run ends, or stop the run: "
            "ansible-playbook playbooks/kill.yml -e run=NAME. If the process belongs to no run, "
            "end it: ansible-playbook playbooks/kill.yml -e strays=true"
        )
    try:
        name = env_id(lock_digest(options["lock"]), python_minor(paths.root / "bin/python"))
        rendezvous = (options["coordinator"], options["processes"], options["process"])
        worker = Worker(options["platform"], device_glob=options["device_glob"])
        env = paths.python_env(name)
        output = prove_slice(env, options["command"], worker, rendezvous, options["seconds"])
    except (EnvError, OSError, KeyError) as error:
        module.fail_json(
            msg=f"the check of the slice failed: {error}. See also the errors of its other workers"
        )
    if output["sum"] != output["devices"] or output["devices"] < options["devices"]:
        module.fail_json(
            msg=f"the slice has {output['devices']} devices, expected at least "
            f"{options['devices']}; adding 1 from each device gives {output['sum']:.0f}, expected "
            f"{output['devices']}. Recreate the TPU: "
            "ansible-playbook playbooks/delete.yml -e tpu=NAME && "
            "ansible-playbook playbooks/create.yml -e tpu=NAME"
        )
    module.exit_json(changed=False, devices=output["devices"])


if __name__ == "__main__":
    main()
