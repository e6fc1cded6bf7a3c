#!/usr/bin/python
"""Look at a worker that misbehaves."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor_worker
short_description: Look at a worker from within, and change nothing
description:
  - Looks at the room on disks, memory, who holds the devices, libtpu's lockfile, whether
    setup was completed, the environment's versions, and the last errors of the kernel and
    of libtpu's log.
options:
  worker:
    description: The worker's name in the inventory, for the commands that mend something.
    type: str
    required: true
  device_glob:
    description: The pattern of the device files of the chips. Empty where there are none.
    type: str
    default: ""
  chips:
    description: How many there should be.
    type: int
    default: 0
  fleet_state:
    description: The C(gs://) address of the run records, which workers should not be able to write
      to. Empty where there is none.
    type: str
    default: ""
  checkpoints:
    description: Where runs keep their checkpoints by default, a directory or a C(gs://) address.
    type: str
    default: ""
  workers:
    description: How many workers the TPU has.
    type: int
    default: 1
  worker_id:
    description: Which of them this one is, from 0.
    type: int
    default: 0
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
- name: Look at the worker from within
  tpufleet.core.doctor_worker:
    worker: "{{ inventory_hostname }}"
    device_glob: "{{ tpu_device_glob }}"
  become: true
"""

RETURN = r"""
findings:
  description: A dictionary a check, with C(check), C(state) (V(ok), V(mend) or V(unseen)), C(said)
    and C(mend), the command that mends it.
  type: list
  elements: dict
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.doctor_finding import told
from ..module_utils.worker.doctor_machine import Machine, kernel_lines, look


def main() -> None:
    """Look, and tell."""
    module = AnsibleModule(
        argument_spec={
            "worker": {"type": "str", "required": True},
            "device_glob": {"type": "str", "default": ""},
            "chips": {"type": "int", "default": 0},
            "fleet_state": {"type": "str", "default": ""},
            "checkpoints": {"type": "str", "default": ""},
            "workers": {"type": "int", "default": 1},
            "worker_id": {"type": "int", "default": 0},
            "root": {"type": "path", "default": "/opt/tpufleet"},
        },
        supports_check_mode=True,
    )
    given = module.params
    machine = Machine(
        given["worker"],
        given["device_glob"],
        given["chips"],
        root=Path(given["root"]),
        fleet_state=given["fleet_state"],
        checkpoints=given["checkpoints"],
        workers=given["workers"],
        worker_id=given["worker_id"],
    )
    module.exit_json(changed=False, findings=told(look(machine, kernel_lines())))


if __name__ == "__main__":
    main()
