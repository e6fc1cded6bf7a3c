"""The module tpufleet.core.tpu_node; what it does is in module_utils/cloud/tpu_lifecycle.py."""

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
extends_documentation_fragment: [tpufleet.core.tpu_api, tpufleet.core.tpu_node]
attributes:
  check_mode:
    description: Makes no request that changes anything, and foretells the same as the real run.
    support: full
  diff_mode:
    description: Shows the TPU before and after; metadata only by length and digest.
    support: full
options:
  name:
    description: The TPU's name.
    type: str
    required: true
  zone:
    description: Its zone.
    type: str
    required: true
  state:
    description:
      - Whether it should be there (and READY) or not.
      - V(started) and V(stopped) are for a TPU that exists, and look at nothing but its state. One
        that stands still keeps its disks and costs no chips. Google stops only TPUs of one worker,
        and starts no spot TPU again.
    type: str
    choices: [present, absent, started, stopped]
    default: present
  accelerator_type:
    description:
      - What it is, such as V(v4-16). To make one, either this or O(accelerator_config) is needed.
        It can't be changed later.
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
  reserved:
    description: Taken out of the project's reservation. It can't be changed later.
    type: bool
    default: false
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

- name: Let a TPU of one worker stand still over the weekend
  tpufleet.core.tpu_node:
    api: "{{ tpu_api }}"
    name: bench
    zone: us-central2-b
    state: stopped

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

from ..module_utils.cloud.cloud_module import (
    NAMED_OPTIONS,
    NEEDED_TO_MAKE,
    PROGRESS_OPTION,
    progress_of,
    result_of,
    run_cloud_module,
)
from ..module_utils.cloud.host_keys import KnownHostsFile, remember_host_keys
from ..module_utils.cloud.tpu_api import TpuApi
from ..module_utils.cloud.tpu_lifecycle import ensure_absent, ensure_power, ensure_present
from ..module_utils.cloud.tpu_wanted import Outcome, status_of
from ..module_utils.cloud.wanted_options import NODE_OPTIONS, wanted_of


def _run(module: AnsibleModule, api: TpuApi) -> dict[str, Any]:
    state, keys = module.params["state"], module.params["known_hosts_file"]
    work = {"present": _present, "absent": _absent}.get(state, _power)
    done = work(module, api)
    if keys and done.node and not module.check_mode:
        if state == "absent":
            KnownHostsFile(keys).forget(done.node.key)
        elif state == "present":
            for worker in remember_host_keys(api, done.node, keys, lambda _text: None):
                module.warn(f"worker {worker} of TPU {done.node.where} published no ssh host keys")
    result = result_of(done)
    if done.node and state != "absent":
        result["node"] = status_of(done.node)
    return result


def _present(module: AnsibleModule, api: TpuApi) -> Outcome:
    given = module.params
    return ensure_present(
        api,
        wanted_of(given),
        timeout=given["timeout"],
        check=module.check_mode,
        recreate=given["recreate"],
        replace_dead=given["replace_dead"],
        progress=progress_of(given),
    )


def _absent(module: AnsibleModule, api: TpuApi) -> Outcome:
    given = module.params
    return ensure_absent(
        api,
        given["zone"],
        given["name"],
        timeout=given["timeout"],
        check=module.check_mode,
        progress=progress_of(given),
    )


def _power(module: AnsibleModule, api: TpuApi) -> Outcome:
    given = module.params
    return ensure_power(
        api,
        given["zone"],
        given["name"],
        started=given["state"] == "started",
        timeout=given["timeout"],
        check=module.check_mode,
        progress=progress_of(given),
    )


def main() -> None:
    """Run as a module."""
    run_cloud_module(
        _run,
        {
            **NAMED_OPTIONS,
            **NODE_OPTIONS,
            **PROGRESS_OPTION,
            "state": {
                "type": "str",
                "choices": ["present", "absent", "started", "stopped"],
                "default": "present",
            },
            "recreate": {"type": "bool", "default": False},
            "replace_dead": {"type": "bool", "default": False},
            "known_hosts_file": {"type": "str"},
        },
        required_if=NEEDED_TO_MAKE,
    )


if __name__ == "__main__":
    main()
