"""The options of the inventory plugin tpufleet.core.tpu."""

from __future__ import annotations


class ModuleDocFragment:
    """The documentation fragment, from which Ansible also reads the plugin's options."""

    DOCUMENTATION = r"""
options:
  plugin:
    description: Must be V(tpufleet.core.tpu), so that Ansible reads the file with this plugin.
    type: string
    required: true
    choices: [tpufleet.core.tpu]
  project:
    description: The Google Cloud project's id, which is required.
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
      - The name of this fleet, up to 63 characters of a-z, 0-9, - and _, beginning with a letter.
        Each fleet of a project needs a name of its own.
      - C(create.yml) gives every TPU the label C(tpufleet-fleet) with this name as its value. The
        hosts of TPUs without this label are also in the group C(foreign); playbooks skip them
        unless you name the TPU with C(-e tpu=NAME).
    type: string
    default: default
    env: [{name: TPUFLEET_FLEET_NAME}]
  on_error:
    description:
      - What to do if the TPUs cannot be listed. V(fail) is an error. It ends the command if
        Ansible's setting C(any_unparsed_is_failed) is true, as in tpufleet's C(ansible.cfg);
        otherwise Ansible shows a warning and continues without these hosts. V(report) continues
        without hosts, with the reason in the variable C(tpu_inventory_error), so that
        C(doctor.yml) checks everything else as well; use it for no other playbook.
    type: string
    choices: [fail, report]
    default: fail
    env: [{name: TPUFLEET_ON_ERROR}]
  endpoint:
    description: The address of the Cloud TPU API, C(http(s)://host[:port]). Empty for Google's.
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
      The address of the Compute Engine API, for firewall rules and disks. By default Google's
      address; if O(endpoint) is set, the path C(/compute/v1) at that address.
    type: string
    default: ""
    env: [{name: TPUFLEET_COMPUTE_ENDPOINT}]
  storage_endpoint:
    description:
      The address of Cloud Storage. The environment variable STORAGE_EMULATOR_HOST takes precedence.
      By default Google's address; none if O(endpoint) is set.
    type: string
    default: ""
    env: [{name: TPUFLEET_STORAGE_ENDPOINT}]
  address:
    description:
      - How to connect to workers. V(external) and V(internal) use their external or internal
        address. V(iap) uses Google's Identity-Aware Proxy (C(gcloud compute start-iap-tunnel)) and
        the host names in the workers' guest attributes.
    type: string
    choices: [external, internal, iap]
    default: external
    env: [{name: TPUFLEET_ADDRESS}]
  ssh_user:
    description: The user name for ssh connections to workers. If empty, Ansible uses its default.
    type: string
    default: ""
    env: [{name: TPUFLEET_SSH_USER}]
  os_login:
    description:
      - Whether users log in by OS Login instead of with ssh keys in the TPUs' metadata. If true,
        TPUs are created with C(enable-oslogin), and tpufleet's key is not added to their
        C(ssh-keys).
      - With OS Login, set O(ssh_user) to the POSIX name that C(gcloud compute os-login
        describe-profile) shows. Add your public key with C(gcloud compute os-login ssh-keys add
        --key-file=KEY.pub). To become root, you need the role C(roles/compute.osAdminLogin).
    type: bool
    default: false
    env: [{name: TPUFLEET_OS_LOGIN}]
  ssh_private_key_file:
    description:
      The file of the private key for ssh. If empty, ssh uses its default, and C(create.yml) creates
      TPUs only with O(os_login).
    type: string
    default: ""
    env: [{name: TPUFLEET_SSH_PRIVATE_KEY_FILE}]
  known_hosts_file:
    description:
      - The fleet's own known_hosts file. It gets the host keys of a new TPU from the TPU's guest
        attributes, each under an alias made of TPU id and worker number.
    type: string
    default: ~/.config/tpufleet/known_hosts
    env: [{name: TPUFLEET_KNOWN_HOSTS_FILE}]
  host_keys:
    description:
      - What ssh does if a worker has published no host keys. V(strict) refuses the connection.
        V(accept-new) trusts the first key and later accepts no other. In both cases a warning names
        the worker.
    type: string
    choices: [strict, accept-new]
    default: strict
    env: [{name: TPUFLEET_HOST_KEYS}]
  allow_partial:
    description:
      - Whether to continue with a warning if some zones do not respond. In this case, the variable
        C(tpu_partial) of the group C(all) is true, and C(tpu_unreachable) is the list of these
        zones.
    type: bool
    default: false
    env: [{name: TPUFLEET_ALLOW_PARTIAL}]
  hostnames:
    description:
      - Jinja expressions for a host's name. The first one with a non-empty result is used. They can
        use the host's variables, and its default name as C(inventory_hostname).
    type: list
    elements: string
    default: []
    env: [{name: TPUFLEET_HOSTNAMES}]
  filters:
    description:
      - Jinja expressions that must all be true for a TPU to be listed. They can use the TPU's
        variables, such as C(tpu_labels) and C(tpu_zone), but not those of its workers. A TPU that
        is left out is in no group, and its host keys are not read.
      - An expression that can't be evaluated for a TPU leaves it out with a warning; with
        O(strict=true) it is an error.
    type: list
    elements: string
    default: []
    env: [{name: TPUFLEET_FILTERS}]
  vars:
    description:
      - Variables of the group C(all). Templates in the inventory file can use them, too; each
        variable can use those before it.
    type: dict
    default: {}
    env: [{name: TPUFLEET_VARS}]
  down_hint:
    description: A hint to add to the error message if the endpoint can't be determined or does not
      respond.
    type: string
    default: ""
    env: [{name: TPUFLEET_DOWN_HINT}]
"""
