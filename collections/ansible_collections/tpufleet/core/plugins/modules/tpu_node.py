"""Module tpufleet.core.tpu_node: manage one TPU (module_utils/cloud/node_state.py)."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_node
short_description: Create, change, start, stop or delete one Cloud TPU
description:
  - Compares the TPU with the options, changes only what differs, and waits until the TPU is READY,
    STOPPED or deleted.
  - Runs on the controller (C(hosts) or C(delegate_to) V(localhost)), with its Python.
  - For a whole fleet, use M(tpufleet.core.tpu_fleet), as C(create.yml) and C(delete.yml) do.
author: tpufleet maintainers
extends_documentation_fragment:
  - tpufleet.core.tpu_api
  - tpufleet.core.tpu_node
  - tpufleet.core.diff_mode
attributes:
  diff_mode:
    description: Shows the TPU before and after. Of each metadata entry, it shows only the length
      and a digest.
options:
  name:
    description: The name of the TPU.
    type: str
    required: true
  zone:
    description: The zone of the TPU.
    type: str
    required: true
  state:
    description:
      - V(present) creates the TPU or changes it, and waits until it is READY. V(absent) deletes it.
      - V(started) and V(stopped) start and stop an existing TPU. Of the options that are not
        required, they use only O(node_id) and O(timeout). A stopped TPU keeps its disks, and its
        chips cost nothing. Google stops only TPUs of one worker, and never starts a spot TPU again.
    type: str
    choices: [present, absent, started, stopped]
    default: present
  node_id:
    description: The id of the TPU to start or stop. It is an error if the TPU of this name has
      another id. By default any TPU of this name.
    type: str
    default: ""
  spot:
    description: Whether to create a spot TPU, which is cheaper and may be preempted at any time. It
      can't be changed later.
    type: bool
    default: false
  preemptible:
    description: Whether to create the TPU as preemptible, the older kind of spot, which is
      preempted after at most 24 hours. It can't be changed later.
    type: bool
    default: false
  reserved:
    description: Whether to use the project's reservation. It can't be changed later.
    type: bool
    default: false
  recreate:
    description: Whether to delete and recreate the TPU if it differs in a setting that can't be
      changed, or was preempted or terminated.
    type: bool
    default: false
  replace_dead:
    description: Whether to delete and recreate the TPU if it was preempted or terminated.
    type: bool
    default: false
  known_hosts_file:
    description:
      The known_hosts file to which O(state=present) adds the workers' ssh host keys, and from which
      O(state=absent) removes them. The task waits up to two minutes for the keys, in addition to
      O(timeout).
    type: str
  timeout:
    description: The time limit for all steps together, in seconds.
    type: int
    default: 1800
"""

EXAMPLES = r"""
- name: Create a TPU of two workers
  tpufleet.core.tpu_node:
    api: "{{ tpu_api }}"
    name: demo
    zone: us-central2-b
    accelerator_type: v4-16
    runtime_version: tpu-ubuntu2204-base
    spot: true
    metadata:
      ssh-keys: "tpu:{{ lookup('ansible.builtin.file', '~/.ssh/id_ed25519.pub') }}"
    known_hosts_file: "{{ tpu_ssh.known_hosts_file }}"

- name: Stop a TPU of one worker over the weekend
  tpufleet.core.tpu_node:
    api: "{{ tpu_api }}"
    name: bench
    zone: us-central2-b
    state: stopped

- name: Delete a TPU
  tpufleet.core.tpu_node:
    api: "{{ tpu_api }}"
    name: demo
    zone: us-central2-b
    state: absent
"""

RETURN = r"""
node:
  description: The TPU with its id, state, health and the workers' addresses. In check mode, the TPU
    before the change.
  type: dict
  returned: if the TPU exists, except with O(state=absent)
  sample: {name: demo, zone: us-central2-b, state: READY, workers: [{internal_ip: 10.0.0.2}]}
msg:
  description: What the task did, in one line.
  type: str
  returned: always
  sample: TPU demo (us-central2-b) is created
reason:
  description:
    A code for the cause of the failure, such as C(capacity), C(quota), C(different),
    C(unauthorized), C(deadline).
  type: str
  returned: failure
"""

from functools import partial
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.cloud.changes import ChangeOptions, Outcome
from ..module_utils.cloud.errors import QuotaError
from ..module_utils.cloud.host_keys import KnownHostsFile, published_keys, remember_host_keys
from ..module_utils.cloud.module import NAMED_OPTIONS, REQUIRED_TO_CREATE, run_cloud_module
from ..module_utils.cloud.node_diff import status_of
from ..module_utils.cloud.node_spec import NODE_OPTIONS, NodeSpec
from ..module_utils.cloud.node_state import ensure_absent, ensure_power, ensure_present
from ..module_utils.cloud.nodes import Node
from ..module_utils.cloud.queue_state import list_zone
from ..module_utils.cloud.quota import QuotaExplainer
from ..module_utils.cloud.tpu_api import TpuApi


def _run(module: AnsibleModule, api: TpuApi) -> dict[str, Any]:
    params, check = module.params, module.check_mode
    state, zone, name, timeout = (params[key] for key in ("state", "zone", "name", "timeout"))
    if state == "present":
        outcome = _create(module, api)
    elif state == "absent":
        outcome = ensure_absent(api, zone, name, ChangeOptions(timeout=timeout, check=check))
    else:
        started = state == "started"
        node_id = params["node_id"]
        outcome = ensure_power(
            api, zone, name, started=started, timeout=timeout, node_id=node_id, check=check
        )
    node = outcome.node
    if node and params["known_hosts_file"] and not check:
        _update_known_hosts(module, api, node)
    node_result = {"node": status_of(node)} if node and state != "absent" else {}
    return outcome.result() | node_result


def _create(module: AnsibleModule, api: TpuApi) -> Outcome:
    params = module.params
    spec = NodeSpec.of_options(params)
    try:
        options = ChangeOptions(
            check=module.check_mode,
            recreate=params["recreate"],
            replace_dead=params["replace_dead"],
            timeout=params["timeout"],
        )
        return ensure_present(api, spec, options)
    except QuotaError as error:
        raise QuotaExplainer(partial(list_zone, api)).explain(error, spec) from None


def _update_known_hosts(module: AnsibleModule, api: TpuApi, node: Node) -> None:
    state, file = module.params["state"], module.params["known_hosts_file"]
    if state == "absent":
        KnownHostsFile(file).forget(node.key)
    elif state == "present":
        read_keys = partial(published_keys, api, node, with_names=True)
        for warning in remember_host_keys(read_keys, node, file, api.polling):
            module.warn(warning)


def main() -> None:
    """Run the module: bring the TPU to the desired state."""
    run_cloud_module(
        _run,
        {
            **NAMED_OPTIONS,
            **NODE_OPTIONS,
            "state": {
                "type": "str",
                "choices": ["present", "absent", "started", "stopped"],
                "default": "present",
            },
            "node_id": {"type": "str", "default": ""},
            "recreate": {"type": "bool", "default": False},
            "replace_dead": {"type": "bool", "default": False},
            "known_hosts_file": {"type": "str"},
        },
        required_if=REQUIRED_TO_CREATE,
    )


if __name__ == "__main__":
    main()
