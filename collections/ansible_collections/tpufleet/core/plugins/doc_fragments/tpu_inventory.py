"""The options of the inventory plugin tpufleet.core.tpu."""

from __future__ import annotations


class ModuleDocFragment:
    """Read by Ansible, which takes an inventory plugin's options from its documentation."""

    DOCUMENTATION = r"""
options:
  plugin:
    description: Says that this file is for this plugin.
    type: string
    required: true
    choices: [tpufleet.core.tpu]
  project:
    description: The Google Cloud project's id.
    type: string
    env: [{name: TPUFLEET_PROJECT}]
  zones:
    description: The zones to list, V(-) for all.
    type: list
    elements: string
    default: ["-"]
    env: [{name: TPUFLEET_ZONES}]
  fleet_name:
    description:
      - The name of this fleet, up to 63 of a-z, 0-9, - and _. Give each fleet of a project its own.
      - C(create.yml) labels every TPU with C(tpufleet-fleet) and this name. Workers of TPUs without
        this label are in the group C(foreign), too; the verbs leave them alone unless they are
        named with C(-e tpu=NAME).
    type: string
    default: default
    env: [{name: TPUFLEET_FLEET_NAME}]
  on_error:
    description:
      - What to do if the TPUs cannot be listed. V(fail) ends the command. V(report) continues
        without hosts, with the reason in the variable C(tpu_inventory_error), so that C(doctor.yml)
        checks everything else as well; use it for no other playbook.
    type: string
    choices: [fail, report]
    default: fail
    env: [{name: TPUFLEET_ON_ERROR}]
  endpoint:
    description: The API's address, C(http(s)://host[:port]). Empty for Google's.
    type: string
    default: ""
    env: [{name: TPUFLEET_ENDPOINT}]
  credentials_file:
    description:
      - A service account's key file or an C(authorized_user) file.
      - If empty, Google's application-default credentials are used (GOOGLE_APPLICATION_CREDENTIALS,
        C(gcloud auth application-default login), the metadata server).
    type: string
    default: ""
    env: [{name: TPUFLEET_CREDENTIALS_FILE}]
  compute_endpoint:
    description:
      Compute Engine's address, for the modules that make firewall rules and disks. Empty for
      Google's, or for C(/compute/v1) of O(endpoint) where that is given.
    type: string
    default: ""
    env: [{name: TPUFLEET_COMPUTE_ENDPOINT}]
  storage_endpoint:
    description:
      Cloud Storage's address, for what looks at a bucket; the environment's STORAGE_EMULATOR_HOST
      comes before it. Empty for Google's, or where O(endpoint) is given for none.
    type: string
    default: ""
    env: [{name: TPUFLEET_STORAGE_ENDPOINT}]
  address:
    description:
      - How workers are reached, by their external or internal address, or by Google's
        Identity-Aware Proxy (C(gcloud compute start-iap-tunnel); the guests' host names come from
        their attributes).
    type: string
    choices: [external, internal, iap]
    default: external
    env: [{name: TPUFLEET_ADDRESS}]
  ssh_user:
    description: The user on the workers. Empty for Ansible's default.
    type: string
    default: ""
    env: [{name: TPUFLEET_SSH_USER}]
  os_login:
    description:
      - The workers let in people by OS Login, not by keys in their metadata. TPUs are then made
        with C(enable-oslogin) and without C(ssh-keys).
      - O(ssh_user) is then the POSIX name that C(gcloud compute os-login describe-profile) says,
        the public key has to be told with C(gcloud compute os-login ssh-keys add
        --key-file=KEY.pub), and root needs the role C(roles/compute.osAdminLogin).
    type: bool
    default: false
    env: [{name: TPUFLEET_OS_LOGIN}]
  ssh_private_key_file:
    description: The private key for ssh. Empty for ssh's default.
    type: string
    default: ""
    env: [{name: TPUFLEET_SSH_PRIVATE_KEY_FILE}]
  known_hosts_file:
    description:
      - The fleet's own known_hosts file. The keys of a TPU that is met for the first time are
        read from its guest attributes and written there, under an alias of TPU id and worker
        number.
    type: string
    default: ~/.config/tpufleet/known_hosts
    env: [{name: TPUFLEET_KNOWN_HOSTS_FILE}]
  host_keys:
    description:
      - What ssh does about a worker that published no host keys. V(strict) refuses it,
        V(accept-new) believes the first answer and keeps to it. Either way there is a warning
        that names the worker.
    type: string
    choices: [strict, accept-new]
    default: strict
    env: [{name: TPUFLEET_HOST_KEYS}]
  allow_partial:
    description:
      - Go on when some zones don't answer. The group C(all) then has C(tpu_partial=true) and
        C(tpu_unreachable), the zones, and there is a warning.
    type: bool
    default: false
    env: [{name: TPUFLEET_ALLOW_PARTIAL}]
  hostnames:
    description:
      - Expressions for the hosts' names; the first that gives a text counts. They see the host's
        variables, and its default name as C(inventory_hostname), which is the name if none does.
    type: list
    elements: string
    default: []
    env: [{name: TPUFLEET_HOSTNAMES}]
  filters:
    description:
      - Expressions that must all be true for a TPU to be listed. They see its variables, such as
        C(tpu_labels) and C(tpu_zone), without those of its workers. What is left out is in no
        group, and its host keys are not asked for.
      - One that can't be evaluated for a TPU leaves it out, with a warning; with O(strict=true) it
        is an error.
    type: list
    elements: string
    default: []
    env: [{name: TPUFLEET_FILTERS}]
  vars:
    description:
      - Variables for the templates in this file, each seeing those before it, and for everything
        else, as variables of the group C(all).
    type: dict
    default: {}
    env: [{name: TPUFLEET_VARS}]
  down_hint:
    description: What to say where the endpoint can't be found out or nobody answers there.
    type: string
    default: ""
    env: [{name: TPUFLEET_DOWN_HINT}]
"""
