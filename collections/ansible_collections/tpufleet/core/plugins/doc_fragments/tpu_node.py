"""The options that say what a TPU is, for all modules that make some."""

from __future__ import annotations


class ModuleDocFragment:
    """Read by ansible-doc."""

    DOCUMENTATION = r"""
options:
  progress_file:
    description:
      - A file to which the module adds a line for each thing that it waits for, and every ten
        seconds that it still does. Where the module runs on the controller, these are shown.
    type: path
  accelerator_config:
    description: What it is, by its topology. It can't be changed later.
    type: dict
    suboptions:
      type:
        description: The generation, in the API's words.
        type: str
        choices: [V2, V3, V4, V5LITE_POD, V5P, V6E]
        required: true
      topology:
        description: The chips' arrangement, such as V(2x2x4).
        type: str
        required: true
  service_account:
    description:
      - The service account's address, which programs on the workers act as. It can't be changed
        later. Google's default is the project's Compute Engine account.
    type: str
  scopes:
    description: What the service account's tokens are good for. It can't be changed later.
    type: list
    elements: str
  secure_boot:
    description: Shielded workers, which boot signed software only. It can't be changed later.
    type: bool
  data_disks:
    description: Disks that are attached to all workers. They can't be changed later.
    type: list
    elements: dict
    suboptions:
      name:
        description: A disk of the same project and zone, or the API's whole path of one.
        type: str
        required: true
      mode:
        description: Several workers can share a disk only V(read-only).
        type: str
        choices: [read-only, read-write]
        default: read-only
      size_gb:
        description:
          - Make the disk, empty and of this size, where there is none of the name. V(0) takes one
            that is there.
          - It is never deleted with the TPU; C(delete.yml -e disks=true) deletes it.
        type: int
        default: 0
      type:
        description:
          - The type to make it of. By default C(pd-balanced) up to v5p, and C(hyperdisk-balanced)
            for v6e, as Google's table has it.
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
    description: A text for people.
    type: str
  labels:
    description: All its labels.
    type: dict
  tags:
    description: All its network tags.
    type: list
    elements: str
  metadata:
    description:
      - Entries of its metadata, such as C(ssh-keys) and C(startup-script); others that it has stay.
      - Everybody who may read the TPU can read them, so put no secret there.
    type: dict
"""
