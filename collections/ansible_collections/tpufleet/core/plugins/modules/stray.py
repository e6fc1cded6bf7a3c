#!/usr/bin/python
"""Module tpufleet.core.stray: list or end processes that hold a device but belong to no run."""

from __future__ import annotations

DOCUMENTATION = r"""
module: stray
short_description: List or end the processes that hold a device but belong to no run
description:
  - Without O(end), lists the processes that have one of this worker's accelerator devices open but
    are not in the unit of a run.
  - With O(end), sends TERM to the processes in O(end), and KILL to those that still hold a device
    ten seconds later. A process gets a signal only if it still has the pid and the start time in
    its C(id), and still holds a device.
  - With O(end), finally removes libtpu's lock file, unless a process holds it or a device, or a run
    is active.
options:
  device_glob:
    description: The glob pattern of the accelerators' device files. Empty for a worker without
      accelerators.
    type: str
    required: true
  end:
    description: The C(id) of each process to end, as returned in RV(strays).
    type: list
    elements: str
extends_documentation_fragment: tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Find the processes
  tpufleet.core.stray:
    device_glob: /dev/accel*
  become: true
  register: found

- name: End the processes
  tpufleet.core.stray:
    device_glob: /dev/accel*
    end: "{{ found.strays | map(attribute='id') }}"
  become: true
"""

RETURN = r"""
strays:
  description: The processes that hold a device at the end of the task. C(since) is in UTC.
  returned: success
  type: list
  elements: dict
  sample:
    - id: "812-77"
      pid: 812
      user: ada
      command: python x.py
      since: "2026-01-02T03:04:05Z"
      device: /dev/accel0
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.locks import RUNS, RUNS_WAIT_SECONDS, one_at_a_time
from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.run import RunError
from ..module_utils.worker.run_start import free_device
from ..module_utils.worker.strays import end, strays

GRACE_SECONDS = 10


def main() -> None:
    """Run the module: list the strays, or end those in the option ``end``."""
    module = AnsibleModule(
        argument_spec={
            "device_glob": {"type": "str", "required": True},
            "end": {"type": "list", "elements": "str"},
        },
        supports_check_mode=True,
    )
    pattern, check = module.params["device_glob"], module.check_mode
    try:
        processes = strays(pattern)
        if module.params["end"] is None:
            module.exit_json(changed=False, strays=[stray.to_json() for stray in processes])
        chosen = [stray for stray in processes if stray.id in module.params["end"]]
        if chosen and not check:
            end(chosen, pattern, GRACE_SECONDS)
        with one_at_a_time(RUNS, RUNS_WAIT_SECONDS):
            _, removed = free_device(pattern, check=check)
        remaining = processes if check else strays(pattern)
    except RunError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"can't list or end strays: {os_error_text(error, 'a process')}")
    module.exit_json(
        changed=bool(chosen) or removed, strays=[stray.to_json() for stray in remaining]
    )


if __name__ == "__main__":
    main()
