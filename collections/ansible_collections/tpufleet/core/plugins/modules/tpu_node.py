"""The module tpufleet.core.tpu_node; what it does is in module_utils/tpu_lifecycle.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_node
short_description: Make, change or remove one Cloud TPU
description:
  - Reads the TPU, compares it with what is wanted, and changes only what differs. Waits until it
    is READY, or gone.
  - Runs where ansible-playbook runs (on localhost), with that Python.
  - A lost answer never makes a second TPU, for the name is part of the request, and what came of
    it is read back.
author: tpufleet maintainers
requirements: [google-auth, requests]
attributes:
  check_mode:
    description: Makes no request that changes anything, and foretells the same as the real run.
    support: full
  diff_mode:
    description: Shows the TPU before and after; metadata only by length and digest.
    support: full
options:
  api:
    description: Which API, whose project, which key; the inventory's variable C(tpu_api).
    type: dict
    required: true
    suboptions:
      project:
        description: The Google Cloud project's id.
        type: str
        required: true
      endpoint:
        description: The API's address. Empty for Google's.
        type: str
        default: ""
      credentials_file:
        description: A key file. Empty for Google's application-default credentials.
        type: str
        default: ""
      zones:
        description: The zones that the inventory lists; of no matter here.
        type: list
        elements: str
        default: ["-"]
  name:
    description: The TPU's name.
    type: str
    required: true
  zone:
    description: Its zone.
    type: str
    required: true
  state:
    description: Whether it should be there (and READY) or not.
    type: str
    choices: [present, absent]
    default: present
  accelerator_type:
    description: What it is, such as V(v4-16); needed to make one. It can't be changed later.
    type: str
    default: ""
  runtime_version:
    description:
      The workers' image, such as V(tpu-ubuntu2204-base); needed to make one. It can't be changed
      later.
    type: str
    default: ""
  spot:
    description: Cheaper, and may be taken away at any moment. It can't be changed later.
    type: bool
    default: false
  preemptible:
    description: The older kind of spot, which ends after 24 hours. It can't be changed later.
    type: bool
    default: false
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
  recreate:
    description: Delete a TPU that differs in what can't be changed, and make it anew.
    type: bool
    default: false
  replace_dead:
    description: Delete a TPU that was preempted or terminated, and make it anew.
    type: bool
    default: false
  known_hosts_file:
    description:
      Write the host keys of the new TPU's workers there, and remove those of a deleted one.
    type: str
  timeout:
    description: How long all of it may take, in seconds.
    type: int
    default: 1800
"""

EXAMPLES = r"""
- name: Have a TPU of two workers
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

- name: Have it no more
  tpufleet.core.tpu_node:
    api: "{{ tpu_api }}"
    name: demo
    zone: us-central2-b
    state: absent
"""

RETURN = r"""
node:
  description:
    The TPU, with id, state, health and the workers' addresses. Absent where there is none.
  type: dict
  returned: when there is one
  sample: {name: demo, zone: us-central2-b, state: READY, workers: [{internal_ip: 10.0.0.2}]}
msg:
  description: One line on what happened.
  type: str
  returned: always
  sample: TPU demo (us-central2-b) is made
reason:
  description:
    A word for what went wrong, such as C(capacity), C(quota), C(different), C(unauthorized),
    C(deadline).
  type: str
  returned: failure
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.host_keys import KnownHostsFile, remember_host_keys
from ..module_utils.tpu_api import ApiSettings, TpuApi
from ..module_utils.tpu_errors import TpuApiError
from ..module_utils.tpu_lifecycle import (
    Wanted,
    ensure_absent,
    ensure_present,
    status_of,
)

API_OPTIONS: dict[str, Any] = {
    "project": {"type": "str", "required": True},
    "endpoint": {"type": "str", "default": ""},
    "credentials_file": {"type": "str", "default": ""},
    "zones": {"type": "list", "elements": "str", "default": ["-"]},
}


def _run(module: AnsibleModule) -> dict[str, Any]:
    given = module.params
    api = TpuApi(ApiSettings.of(given["api"]))
    keys = given["known_hosts_file"]
    if given["state"] == "absent":
        done = ensure_absent(
            api, given["zone"], given["name"], timeout=given["timeout"], check=module.check_mode
        )
        if keys and done.node and not module.check_mode:
            KnownHostsFile(keys).forget(done.node.key)
    else:
        wanted = Wanted(
            **{
                key: given[key]
                for key in Wanted.__dataclass_fields__
                if key not in ("tags", "labels", "metadata")
            },
            tags=None if given["tags"] is None else tuple(given["tags"]),
            labels=_texts(given["labels"]),
            metadata=_texts(given["metadata"]),
        )
        done = ensure_present(
            api,
            wanted,
            timeout=given["timeout"],
            check=module.check_mode,
            recreate=given["recreate"],
            replace_dead=given["replace_dead"],
        )
        if keys and done.node and not module.check_mode:
            for worker in remember_host_keys(api, done.node, keys, lambda _text: None):
                module.warn(f"worker {worker} of TPU {wanted.where} published no ssh host keys")
    result: dict[str, Any] = {
        "changed": done.changed,
        "msg": done.msg,
        "diff": {"before": done.before, "after": done.after},
    }
    if done.node and given["state"] == "present":
        result["node"] = status_of(done.node)
    return result


def _texts(pairs: dict[str, Any] | None) -> dict[str, str] | None:
    return None if pairs is None else {str(key): str(value) for key, value in pairs.items()}


def main() -> None:
    """Run as a module."""
    optional: dict[str, Any] = {
        key: {"type": "str"} for key in ("network", "subnetwork", "description", "known_hosts_file")
    }
    module = AnsibleModule(
        argument_spec={
            **optional,
            "api": {"type": "dict", "required": True, "options": API_OPTIONS},
            "name": {"type": "str", "required": True},
            "zone": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "accelerator_type": {"type": "str", "default": ""},
            "runtime_version": {"type": "str", "default": ""},
            "spot": {"type": "bool", "default": False},
            "preemptible": {"type": "bool", "default": False},
            "external_ip": {"type": "bool"},
            "labels": {"type": "dict"},
            "tags": {"type": "list", "elements": "str"},
            "metadata": {"type": "dict"},
            "recreate": {"type": "bool", "default": False},
            "replace_dead": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 1800},
        },
        required_if=[("state", "present", ["accelerator_type", "runtime_version"])],
        supports_check_mode=True,
    )
    try:
        result = _run(module)
    except TpuApiError as error:
        module.fail_json(msg=str(error), reason=error.reason)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
