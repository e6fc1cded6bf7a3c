"""Documentation of tpufleet.core.tpu_fleet for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_fleet
short_description: Plan, create or delete the TPUs of a fleet file, in parallel
description:
  - Lists the TPUs in the inventory's zones, compares them with O(fleet), and creates the missing
    TPUs in parallel. Existing TPUs are changed only where they differ. It is an error if a zone
    does not respond.
  - If a TPU may be in several zones and one has no capacity, the next zone is tried.
  - Shows the state of each TPU when it changes, and every ten seconds.
  - With O(state=planned), changes nothing. It returns what O(state=present) would do, TPUs that are
    not in O(fleet), and the chips of each quota. An existing TPU holds quota unless it was
    preempted. A queued resource holds quota until it is deleted, even after it failed or its TPU
    was preempted.
author: tpufleet maintainers
extends_documentation_fragment:
  - tpufleet.core.tpu_api
  - tpufleet.core.diff_mode
attributes:
  diff_mode:
    description: Shows each changed TPU before and after. Of each metadata entry, it shows only the
      length and a digest.
options:
  fleet:
    description:
      - The desired TPUs, the variable C(tpu_fleet). Each TPU needs C(name), C(zone) or C(zones)
        (tried in this order), C(accelerator_type) and C(runtime_version).
      - The optional settings C(spot), C(preemptible), C(reserved), C(network), C(subnetwork),
        C(external_ip), C(service_account), C(scopes), C(secure_boot), C(data_disks) (a disk may
        also be only a name), C(description), C(labels), C(tags) and C(metadata) are described at
        M(tpufleet.core.tpu_node).
      - C(count) creates several TPUs. With C(name) V(sweep) and C(count) V(3), they are V(sweep-0),
        V(sweep-1) and V(sweep-2).
      - C(idle_delete_after) is a duration such as V(2h). C(watch.yml) deletes the TPU after it has
        been idle for this long.
      - C(queued) requests the TPU through Google's queue, in one zone. Its only key C(valid_for),
        such as V(6h), limits the wait in the queue.
    type: list
    elements: raw
    required: true
  only:
    description:
      - The name of the only TPU to act on, or C(name_zone) if several zones have a TPU of this
        name. A TPU to delete need not be in the fleet. An empty name is an error, so that a script
        with an unset variable does not act on all TPUs.
    type: str
  zone:
    description: The zone of the TPU O(only) if several zones have one of this name. With
      O(state=present), the TPU is created only there.
    type: str
    default: ""
  node_id:
    description:
      - With O(state=absent), for unattended deletion, the API's id of the TPU with the name O(only)
        in O(zone). It is an error if the TPU has another id, or does not have the label of this
        fleet. An empty id is an error too, so that a script with an unset variable does not delete
        another TPU.
      - With O(state=present), the id of the only preempted TPU that may be replaced. It is an error
        if another preempted TPU would be replaced.
    type: str
  fleet_name:
    description:
      - The name of this fleet, the variable C(fleet_name). Every new TPU gets it as the label
        C(tpufleet-fleet).
    type: str
    default: default
  adopt:
    description:
      - Whether to add this fleet's label to existing TPUs of O(fleet) that have no label
        C(tpufleet-fleet). By default such a TPU is an error. A TPU with another fleet's label is
        always an error.
    type: bool
    default: false
  state:
    description:
      - V(present) creates or changes the TPUs, and waits until they are READY.
      - V(absent) deletes the TPUs of O(fleet) that have this fleet's label, with their queued
        resources. With O(only), it deletes the named TPU, whatever its label is.
      - V(planned) returns the plan of the whole fleet and changes nothing.
    type: str
    choices: [present, absent, planned]
    default: present
  ssh_user:
    description: The user who can log in with O(ssh_public_key_file).
    type: str
    default: ""
  ssh_public_key_file:
    description: The file of the ssh public key to add to the TPUs' metadata (C(ssh-keys)).
    type: path
    default: ""
  os_login:
    description:
      Whether users log in by OS Login. If true, the TPUs' metadata enables OS Login, and
      O(ssh_public_key_file) is not added.
    type: bool
    default: false
  known_hosts_file:
    description: The known_hosts file to which the workers' ssh host keys are added, and from which
      those of deleted TPUs are removed.
    type: path
    default: ""
  external_ip:
    description:
      The value for TPUs of O(fleet) that do not set C(external_ip). It says whether workers have
      external addresses. If neither is set, the API decides; its default is no.
    type: bool
  tag:
    description:
      A network tag to add to every TPU, so that the rules of M(tpufleet.core.vpc_firewall) apply to
      it.
    type: str
    default: ""
  disks:
    description:
      - For deletion, whether to also delete the data disks of these TPUs with all their data.
      - Deletes only disks that this collection created for this fleet because of their C(size_gb),
        and that no other TPU of O(fleet) lists. It is an error if another TPU has such a disk
        attached. Can't be combined with O(node_id).
    type: bool
    default: false
  confirmed:
    description:
      - The ids of the TPUs, queued resources and disks that may be deleted, from RV(to_delete) of
        an earlier task in check mode. Any other TPU, queued resource or disk is not deleted and is
        an error. A preempted TPU that is replaced need not be listed. By default everything may be
        deleted.
    type: list
    elements: str
  recreate:
    description: Whether to delete and recreate a TPU that differs in a setting that can't be
      changed, or that was preempted or terminated.
    type: bool
    default: false
  replace_dead:
    description: Whether to delete and recreate a TPU that was preempted or terminated.
    type: bool
    default: false
  timeout:
    description: The time limit for each try to create, change or delete a TPU, in seconds. Each
      zone is a new try.
    type: int
    default: 1800
  wait_for_capacity:
    description: How long to keep trying while no zone has capacity, in seconds. With V(0), each
      zone is tried once.
    type: int
    default: 0
  grant_ends:
    description: With O(state=planned), the last day on which you may use the project's TPUs, such
      as V(2026-12-31), if they were granted for a limited time. In the 7 days before this day and
      on it, there is a warning. After this day, RV(errors) has an error. The task does not fail in
      either case.
    type: str
    default: ""
  bucket:
    description:
      With O(state=planned), the fleet's bucket, C(gs://name/prefix). There is a warning if it is in
      another region than the TPUs.
    type: str
    default: ""
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

- name: Show what create.yml would do
  tpufleet.core.tpu_fleet:
    api: "{{ tpu_api }}"
    fleet: "{{ tpu_fleet }}"
    state: planned
"""

RETURN = r"""
tpus:
  description: One entry for each TPU, queued resource or disk, with C(name), C(zone), C(changed),
    C(failed), C(reason), C(msg) and C(node).
  type: list
  elements: dict
  returned: O(state=present) and O(state=absent)
unwanted:
  description: TPUs with this fleet's label that are not in O(fleet), with C(name), C(zone), C(id),
    C(description) and C(why). C(why) is empty unless O(fleet) uses another TPU of the same name.
  type: list
  elements: dict
  returned: O(state=present)
to_delete:
  description:
    The TPUs, queued resources and disks that this task deletes or recreates, with C(name), C(zone),
    C(id) and C(description); in check mode, those that it would delete or recreate. Preempted TPUs
    that are recreated are left out. With O(state=absent), a TPU also has C(is_ours), which says
    whether it has this fleet's label.
  type: list
  elements: dict
  returned: O(state=present) and O(state=absent)
lines:
  description: The plan, one line for each entry.
  type: list
  elements: str
  returned: O(state=planned)
errors:
  description: Problems that are more severe than a warning, such as a grant that has ended, one
    line each.
  type: list
  elements: str
  returned: O(state=planned)
reason:
  description: A code for the cause of the first failure.
  type: str
  returned: failure
"""
