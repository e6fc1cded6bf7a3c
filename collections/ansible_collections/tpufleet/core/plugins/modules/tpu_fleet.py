"""What ansible-doc shows of tpufleet.core.tpu_fleet; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_fleet
short_description: Make the TPUs of a fleet file, or remove some, side by side
description:
  - Lists the inventory's zones whole (a partial list is an error), compares them with the fleet,
    and makes what is missing, all TPUs at once. What is right stays as it is.
  - A TPU with several zones goes to the next one where there is no capacity.
  - Says every ten seconds how far each TPU is.
author: tpufleet maintainers
requirements: [google-auth, requests]
attributes:
  check_mode:
    description: Makes no request that changes anything, and foretells the same as the real run.
    support: full
  diff_mode:
    description: Shows every TPU before and after; metadata only by length and digest.
    support: full
options:
  api:
    description: Which API, whose project, which key, which zones; the variable C(tpu_api).
    type: dict
    required: true
  fleet:
    description:
      - The TPUs that are wanted, the variable C(tpu_fleet). Each has C(name), C(zone) or C(zones)
        (tried in this order), C(accelerator_type), C(runtime_version), and may have C(count) (V(3)
        of V(sweep) are V(sweep-0) to V(sweep-2)), C(spot), C(preemptible), C(reserved),
        C(network), C(subnetwork), C(external_ip), C(service_account), C(scopes), C(secure_boot),
        C(data_disks) (names, or each with C(name), C(mode), and C(size_gb) and C(type) to make it),
        C(idle_delete_after) (a time such as V(2h); C(watch.yml) deletes one that has had no run for
        so long), C(queued) (asked for through
        Google's queue, in one zone; with C(valid_for) such as V(6h)), C(description), C(labels),
        C(tags) and C(metadata), as in M(tpufleet.core.tpu_node).
    type: list
    elements: raw
    required: true
  only:
    description:
      - Only the TPU of this name, or C(name_zone) where several zones have one. To be removed, it
        need not be in the fleet. An empty name is an error, so that an unset variable of a script
        never means all.
    type: str
  zone:
    description: Only a TPU in this zone, where one of the name is in several; for removing.
    type: str
    default: ""
  node_id:
    description:
      - For removing without anybody watching, the API's id of the one TPU that O(only) and O(zone)
        name. Another TPU of that name, or one without the label of this fleet, is left as it is,
        and is an error. With O(replace_dead), the only preempted TPU that may be replaced.
    type: str
    default: ""
  fleet_name:
    description:
      - The name of this fleet, the variable C(fleet_name). Every TPU that is made gets it as the
        label C(tpufleet-fleet).
    type: str
    default: default
  adopt:
    description:
      - Give the label to TPUs of O(fleet) that exist without one, so that they belong to this
        fleet from now on. Without it they stay as they are, and are an error.
    type: bool
    default: false
  state:
    description: Whether the TPUs should be there (and READY) or not.
    type: str
    choices: [present, absent]
    default: present
  ssh_user:
    description: The user that O(ssh_public_key_file) lets in.
    type: str
    default: ""
  ssh_public_key_file:
    description: This key is added to the TPUs' metadata, C(ssh-keys).
    type: path
    default: ""
  os_login:
    description:
      The TPUs let in people by OS Login; their metadata say so, and O(ssh_public_key_file) is not
      put there.
    type: bool
    default: false
  known_hosts_file:
    description: Where the workers' host keys are written down, and removed.
    type: path
    default: ""
  external_ip:
    description:
      Whether workers have external addresses, for the TPUs that don't say; by default what the API
      does, which is none.
    type: bool
  tag:
    description:
      A network tag that every TPU gets besides its own, so that M(tpufleet.core.vpc_firewall) means
      it.
    type: str
    default: ""
  disks:
    description:
      - Delete the data disks of these TPUs too, with all that is on them; for removing.
      - Only those that this collection made (C(size_gb)); no TPU may have them any more.
    type: bool
    default: false
  agreed:
    description:
      - The ids of the living TPUs that may be deleted, out of RV(doomed) of an earlier run in check
        mode; others stay, and are an error. Without it any may be.
    type: list
    elements: str
  recreate:
    description: Delete a TPU that differs in what can't be changed, and make it anew.
    type: bool
    default: false
  replace_dead:
    description: Delete a TPU that was preempted or terminated, and make it anew.
    type: bool
    default: false
  timeout:
    description: How long each TPU may take, in seconds.
    type: int
    default: 1800
  wait_for_capacity:
    description: How long to go on trying where no zone has capacity, in seconds.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Make the missing TPUs of the fleet
  tpufleet.core.tpu_fleet:
    api: "{{ tpu_api }}"
    fleet: "{{ tpu_fleet }}"
    ssh_user: "{{ tpu_ssh.user }}"
    ssh_public_key_file: "{{ tpu_ssh.private_key_file }}.pub"
    known_hosts_file: "{{ tpu_ssh.known_hosts_file }}"
    replace_dead: true

- name: Remove one TPU
  tpufleet.core.tpu_fleet:
    api: "{{ tpu_api }}"
    fleet: "{{ tpu_fleet }}"
    only: demo
    state: absent
"""

RETURN = r"""
tpus:
  description: One entry a TPU, with name, zone, changed, failed, reason, msg, node.
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
    The living TPUs that are removed, or deleted to be made anew (O(recreate)); or would be, in
    check mode.
  type: list
  elements: dict
  returned: success and failure
reason:
  description: A word for what went wrong with the first TPU that failed.
  type: str
  returned: failure
"""
