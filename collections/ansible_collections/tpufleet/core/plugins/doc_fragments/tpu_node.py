"""The options that describe a TPU, for modules that create TPUs."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment that modules name in ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
options:
  accelerator_type:
    description: The type of the TPU, such as V(v4-16). O(state=present) needs either this or
      O(accelerator_config). It can't be changed later.
    type: str
    default: ""
  runtime_version:
    description: The VM image of the workers, such as V(tpu-ubuntu2204-base). O(state=present) needs
      it. It can't be changed later.
    type: str
    default: ""
  accelerator_config:
    description: The TPU type as generation and topology, instead of O(accelerator_type). It can't
      be changed later.
    type: dict
    suboptions:
      type:
        description: The TPU generation, in the API's spelling.
        type: str
        choices: [V2, V3, V4, V5LITE_POD, V5P, V6E]
        required: true
      topology:
        description: The arrangement of the chips, such as V(2x2x4).
        type: str
        required: true
  service_account:
    description:
      - The address of the service account that programs on the workers use. It can't be changed
        later. Google's default is the project's Compute Engine account.
    type: str
  scopes:
    description: The scopes of the service account's tokens. They can't be changed later.
    type: list
    elements: str
  secure_boot:
    description: Whether the workers boot only signed software (Shielded VM). It can't be changed
      later.
    type: bool
  data_disks:
    description: Disks that are attached to all workers. They can't be changed later. A read-only
      Hyperdisk is attached only once it is shared, which C(fill_disk.yml) does.
    type: list
    elements: dict
    suboptions:
      name:
        description: The name of a disk in the TPU's project and zone, or the disk's full path in
          the API.
        type: str
        required: true
      mode:
        description: How the workers can use the disk. Workers can share a disk only with
          V(read-only).
        type: str
        choices: [read-only, read-write]
        default: read-only
      size_gb:
        description:
          - The size in GB of the empty disk to create if the disk does not exist. With V(0), the
            disk must exist.
          - Deleting the TPU never deletes the disk; C(delete.yml -e disks=true) does.
        type: int
        default: 0
      type:
        description:
          - The type of the disk to create. The default for TPUs up to v5p is C(pd-balanced). For
            v6e and later, it is C(hyperdisk-ml) for a read-only disk and C(hyperdisk-balanced) for
            a read-write disk.
        type: str
        default: ""
  network:
    description: The VPC network. It can't be changed later.
    type: str
  subnetwork:
    description: The subnetwork. It can't be changed later.
    type: str
  external_ip:
    description: Whether the workers have external addresses.
    type: bool
  description:
    description: A description of the TPU, as free text.
    type: str
  labels:
    description: All labels of the TPU. Other labels are removed. By default the labels stay as
      they are.
    type: dict
  tags:
    description: All network tags of the TPU. Other tags are removed. By default the tags stay as
      they are.
    type: list
    elements: str
  metadata:
    description:
      - Entries of the TPU's metadata, such as C(ssh-keys) and C(startup-script). Other entries
        stay, and so do existing lines of C(ssh-keys).
      - Everyone who may read the TPU can read its metadata, so put no secret there.
    type: dict
"""
