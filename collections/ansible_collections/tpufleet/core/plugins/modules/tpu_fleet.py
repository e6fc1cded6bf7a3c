"""Documentation of tpufleet.core.tpu_fleet for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_fleet
short_description: Create the TPUs of a fleet file, or delete some, in parallel
description:
  - Lists the inventory's zones (a partial list is an error), compares them with the fleet, and
    creates what is missing, all TPUs in parallel. What is as desired stays as it is.
  - A TPU with several zones is tried in the next zone if one has no capacity.
  - Shows every ten seconds what each TPU is waiting for.
author: tpufleet maintainers
requirements: [google-auth, requests]
attributes:
  check_mode:
    description: Changes nothing, and returns what would change.
    support: full
  diff_mode:
    description: Shows every TPU before and after; metadata only by length and digest.
    support: full
options:
  api:
    description: Project, endpoints, credentials and zones; the inventory's variable C(tpu_api).
    type: dict
    required: true
  fleet:
    description:
      - The desired TPUs, the variable C(tpu_fleet). Each has C(name), C(zone) or C(zones) (tried in
        this order), C(accelerator_type), C(runtime_version), and may have C(count) (V(3) of
        V(sweep) are V(sweep-0) to V(sweep-2)), C(spot), C(preemptible), C(reserved), C(network),
        C(subnetwork), C(external_ip), C(service_account), C(scopes), C(secure_boot), C(data_disks)
        (names, or each with C(name), C(mode), and C(size_gb) and C(type) to create it),
        C(idle_delete_after) (a duration such as V(2h); C(watch.yml) deletes a TPU that had no run
        for so long), C(queued) (requested through Google's queue, in one zone; with C(valid_for)
        such as V(6h)), C(description), C(labels), C(tags) and C(metadata), as in
        M(tpufleet.core.tpu_node).
    type: list
    elements: raw
    required: true
  only:
    description:
      - Only the TPU of this name, or C(name_zone) if several zones have one. For deletion, it need
        not be in the fleet. An empty name is an error, so that an unset variable of a script never
        means all.
    type: str
  zone:
    description: Only a TPU in this zone, if several zones have one of the name; for deletion.
    type: str
    default: ""
  node_id:
    description:
      - For unattended deletion, the API's id of the one TPU that O(only) and O(zone) name. Another
        TPU of that name, or one without the label of this fleet, is an error. With
        O(replace_dead), the only preempted TPU that may be replaced.
    type: str
    default: ""
  fleet_name:
    description:
      - The name of this fleet, the variable C(fleet_name). Every new TPU gets it as the label
        C(tpufleet-fleet).
    type: str
    default: default
  adopt:
    description:
      - Add the label to existing TPUs of O(fleet) that have none, so that they belong to this
        fleet. Without it they are an error.
    type: bool
    default: false
  state:
    description: Whether the TPUs should exist (and be READY).
    type: str
    choices: [present, absent]
    default: present
  ssh_user:
    description: The user that O(ssh_public_key_file) allows in.
    type: str
    default: ""
  ssh_public_key_file:
    description: This key is added to the TPUs' metadata, C(ssh-keys).
    type: path
    default: ""
  os_login:
    description:
      Allow users by OS Login; the TPUs' metadata say so, and O(ssh_public_key_file) is not added.
    type: bool
    default: false
  known_hosts_file:
    description: Store the workers' ssh host keys there, and remove those of deleted TPUs.
    type: path
    default: ""
  external_ip:
    description:
      Whether workers have external addresses, for TPUs that do not set it. The API's default is no.
    type: bool
  tag:
    description:
      A network tag for every TPU besides its own tags, so that M(tpufleet.core.vpc_firewall)
      applies to it.
    type: str
    default: ""
  disks:
    description:
      - Also delete the data disks of these TPUs with all their data; for deletion.
      - Only those that this collection created (C(size_gb)), and that no TPU uses any more.
    type: bool
    default: false
  agreed:
    description:
      - The ids of what may be deleted, from RV(doomed) of an earlier run in check mode. Others stay
        and are an error. Without it anything may be deleted.
    type: list
    elements: str
  recreate:
    description: Delete and create again a TPU that differs in what can't be changed.
    type: bool
    default: false
  replace_dead:
    description: Delete and create again a TPU that was preempted or terminated.
    type: bool
    default: false
  timeout:
    description: For each TPU, in seconds.
    type: int
    default: 1800
  wait_for_capacity:
    description: How long to keep trying where no zone has capacity, in seconds.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Create the missing TPUs of the fleet
  tpufleet.core.tpu_fleet:
    api: "{{ tpu_api }}"
    fleet: "{{ tpu_fleet }}"
    ssh_user: "{{ tpu_ssh.user }}"
    ssh_public_key_file: "{{ tpu_ssh.private_key_file }}.pub"
    known_hosts_file: "{{ tpu_ssh.known_hosts_file }}"
    replace_dead: true

- name: Delete one TPU
  tpufleet.core.tpu_fleet:
    api: "{{ tpu_api }}"
    fleet: "{{ tpu_fleet }}"
    only: demo
    state: absent
"""

RETURN = r"""
tpus:
  description: One entry for each TPU, with name, zone, changed, failed, reason, msg, node.
  type: list
  elements: dict
  returned: success and failure
unwanted:
  description: TPUs of this fleet, by their label, that O(fleet) does not name.
  type: list
  elements: dict
  returned: O(state=present)
doomed:
  description:
    The living TPUs that are deleted, or recreated (O(recreate)); in check mode, that would be.
  type: list
  elements: dict
  returned: success and failure
reason:
  description: A word for what went wrong with the first TPU that failed.
  type: str
  returned: failure
"""
