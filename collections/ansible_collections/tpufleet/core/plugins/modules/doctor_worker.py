#!/usr/bin/python
"""Module tpufleet.core.doctor_worker: check a worker without changing anything."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor_worker
short_description: Check a worker from within, without changing it
description:
  - Checks free disk space and memory, the number of devices, processes that hold them but belong to
    no run, libtpu's lockfile, whether setup was completed, the versions in the environment, and
    errors of the last 24 hours in the logs of the kernel and of libtpu.
  - Also checks whether the workers of a TPU can share O(checkpoints), and whether this worker can
    write to O(fleet_state), by writing an object there and deleting it again.
options:
  worker:
    description: The worker's name in the inventory, used in the commands of C(fix).
    type: str
    required: true
  device_glob:
    description: The glob pattern of the chips' device files. Empty for a worker without chips.
    type: str
    default: ""
  chips:
    description: The expected number of chips.
    type: int
    default: 0
  fleet_state:
    description: The C(gs://) address of the run records, which workers should not be able to write
      to. Empty if the records are not in a bucket.
    type: str
    default: ""
  checkpoints:
    description: The default location of checkpoints, a directory or a C(gs://) address.
    type: str
    default: ""
  workers:
    description: The number of workers of the TPU.
    type: int
    default: 1
  worker_id:
    description: The index of this worker, from 0.
    type: int
    default: 0
extends_documentation_fragment: tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Check the worker
  tpufleet.core.doctor_worker:
    worker: "{{ inventory_hostname }}"
    device_glob: "{{ tpu_device_glob }}"
  become: true
"""

RETURN = r"""
findings:
  description: The results of the checks, each a dictionary with C(check), C(state) (V(ok),
    V(problem) or V(unknown)), C(message) and C(fix). The fix is a command or an instruction. It is
    empty if there is nothing to fix, or if the message says how.
  type: list
  elements: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.doctor_finding import to_dicts
from ..module_utils.worker.doctor_machine import Machine, check_worker, kernel_lines


def main() -> None:
    """Run the module: run all checks and return their findings."""
    module = AnsibleModule(
        argument_spec={
            "worker": {"type": "str", "required": True},
            "device_glob": {"type": "str", "default": ""},
            "chips": {"type": "int", "default": 0},
            "fleet_state": {"type": "str", "default": ""},
            "checkpoints": {"type": "str", "default": ""},
            "workers": {"type": "int", "default": 1},
            "worker_id": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    params = dict(module.params)
    machine = Machine(params.pop("worker"), **params)
    module.exit_json(changed=False, findings=to_dicts(check_worker(machine, kernel_lines())))


if __name__ == "__main__":
    main()
