"""Documentation of tpufleet.core.shared_disk for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_disk
short_description: Attach a shared data disk to one worker for writing, or read-only to all workers
description:
  - Changes how a data disk is attached to running TPUs. With V(writable), one worker can fill it.
    With V(shared), all READY TPUs of the fleet that have it in C(data_disks) can read it.
    C(fill_disk.yml) uses all states.
  - Never formats or deletes a disk. Detaches the disk only from the TPUs in RV(tpus). It is an
    error if another TPU has it attached.
  - Uses v2alpha1 of the Cloud TPU API, because other versions cannot attach a disk to a single
    worker.
author: tpufleet maintainers
extends_documentation_fragment:
  - tpufleet.core.tpu_api
  - tpufleet.core.check_mode
options:
  fleet:
    description: The desired TPUs, the variable C(tpu_fleet).
    type: list
    elements: raw
    required: true
  fleet_name:
    description: The name of this fleet, which is the value of a label on its TPUs.
    type: str
    default: default
  name:
    description: The disk's name, as in C(data_disks).
    type: str
    required: true
  tpu:
    description: The TPU that writes to the disk. By default the first READY TPU of the fleet file
      that has the disk.
    type: str
    default: ""
  state:
    description:
      - V(detached) detaches the disk from the TPUs in RV(tpus).
      - V(writable) attaches the disk to worker 0 of O(tpu) for writing. If the disk is missing and
        has a C(size_gb), it is created. If other TPUs have the disk, use V(detached) first.
      - V(shared) attaches the disk read-only to all workers of the TPUs in RV(tpus). A Hyperdisk
        gets the access mode C(READ_ONLY_MANY), which can't be undone.
    type: str
    choices: [detached, writable, shared]
    default: shared
  planned:
    description: The ids in RV(tpus) of an earlier call. It is an error, and nothing changes, if
      the writer is another TPU now, or if a TPU that is not listed shares the disk.
    type: list
    elements: str
  timeout:
    description: The time limit in seconds. It is multiplied by the number of TPUs in RV(tpus), and
      applies to all steps together.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: Attach the disk to one worker for writing
  tpufleet.core.shared_disk:
    api: "{{ tpu_api }}"
    fleet: "{{ tpu_fleet }}"
    name: corpus
    state: writable
"""

RETURN = r"""
zone:
  description: The zone of the disk.
  type: str
  returned: success
writer:
  description: The TPU whose worker 0 writes to the disk.
  type: str
  returned: success
tpus:
  description: The TPUs that share the disk. These are the READY TPUs of this fleet, in the zone of
    the disk, that have it in C(data_disks). The first one is RV(writer). C(workers) is the number
    of workers of the TPU, and C(attached) has the numbers of the workers that had the disk before
    this call. The C(id) of a TPU changes if it is recreated.
  type: list
  elements: dict
  returned: success
is_filled:
  description: Whether the disk is a Hyperdisk that was shared before, and at least one TPU in
    RV(tpus) does not have it. For such a disk, O(state=detached) and O(state=writable) change
    nothing; O(state=shared) attaches it.
  type: bool
  returned: success
description:
  description: The text of the confirmation prompt, which says what filling the disk does.
  type: str
  returned: success
reason:
  description: A code for the cause of the failure, such as C(different), C(configuration),
    C(forbidden).
  type: str
  returned: failure
"""
