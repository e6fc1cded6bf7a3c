"""The module tpufleet.core.tpu_queued_resource; its work is in module_utils/cloud/tpu_queue.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_queued_resource
short_description: Ask for Cloud TPUs through Google's queue
description:
  - Puts a request for one TPU, or for several that are slices of one run, into the queue, and waits
    until they are there. What the queue makes is listed by the inventory as any other TPU.
  - A request that failed, or whose TPUs were preempted, is never tried again by Google and holds
    quota. This module removes its own dead request before it asks anew; it has no living TPU.
  - Runs where ansible-playbook runs (on localhost), with that Python.
author: tpufleet maintainers
extends_documentation_fragment: [tpufleet.core.tpu_api, tpufleet.core.tpu_node]
attributes:
  check_mode:
    description: Makes no request that changes anything, and foretells the same as the real run.
    support: full
  diff_mode:
    description: Shows the request before and after.
    support: full
options:
  name:
    description: The queued resource's name.
    type: str
    required: true
  zone:
    description: Its zone.
    type: str
    required: true
  state:
    description: Whether it should be there or not.
    type: str
    choices: [present, absent]
    default: present
  node_name:
    description:
      The TPU's name, or where O(node_count) is more than 1 what stands before V(-0), V(-1) and so
      on. By default O(name).
    type: str
    default: ""
  node_count:
    description: How many TPUs alike. More than one are slices of one run (multislice).
    type: int
    default: 1
  tier:
    description:
      V(spot) is cheaper and may be taken away at any moment; V(guaranteed) stays for
      O(min_duration); V(on-demand) is neither.
    type: str
    choices: [on-demand, spot, guaranteed]
    default: on-demand
  min_duration:
    description: How long the TPUs have to stay, such as V(6h); for O(tier=guaranteed).
    type: str
  valid_for:
    description: How long to stay in the queue, such as V(90m), V(6h) or V(2d); then it fails.
    type: str
  valid_until:
    description: Until when to stay in the queue, in RFC 3339, such as V(2026-12-01T06:00:00Z).
    type: str
    default: ""
  reservation:
    description: The reservation to take the TPUs from.
    type: str
    default: ""
  wait:
    description: Whether to wait until the TPUs are there, or to return when it is in the queue.
    type: bool
    default: true
  replace_dead:
    description: Delete a dead request of this name, and ask anew.
    type: bool
    default: true
  force:
    description: To remove a request with its living TPUs; without it that is an error.
    type: bool
    default: false
  timeout:
    description: How long all of it may take, in seconds. The request stays in the queue after it.
    type: int
    default: 1800
  accelerator_type:
    description: What each TPU is, such as V(v4-16); or O(accelerator_config).
    type: str
    default: ""
  runtime_version:
    description: The workers' image, such as V(tpu-ubuntu2204-base); needed to ask for TPUs.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Ask for two slices of one run, for six hours, and go on at once
  tpufleet.core.tpu_queued_resource:
    api: "{{ tpu_api }}"
    name: big
    zone: us-central2-b
    node_count: 2
    accelerator_type: v4-32
    runtime_version: tpu-ubuntu2204-base
    tier: spot
    valid_for: 6h
    wait: false

- name: Give them back
  tpufleet.core.tpu_queued_resource:
    api: "{{ tpu_api }}"
    name: big
    zone: us-central2-b
    state: absent
    force: true
"""

RETURN = r"""
request:
  description: The request with its state, error, tier and the names of its TPUs.
  type: dict
  returned: when there is one
  sample: {name: big, zone: us-central2-b, state: ACTIVE, tier: spot, nodes: [big-0, big-1]}
msg:
  description: One line on what happened.
  type: str
  returned: always
reason:
  description:
    A word for what went wrong, such as C(capacity), C(quota), C(different), C(deadline).
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
from ..module_utils.cloud.tpu_api import TpuApi
from ..module_utils.cloud.tpu_queue import ensure_not_requested, ensure_requested
from ..module_utils.cloud.tpu_requests import WantedRequest, facts_of_request, seconds_of
from ..module_utils.cloud.wanted_options import NODE_OPTIONS, wanted_of

_SCHEDULING = ("spot", "preemptible", "reserved")


def _run(module: AnsibleModule, api: TpuApi) -> dict[str, Any]:
    given = module.params
    if given["state"] == "absent":
        return result_of(
            ensure_not_requested(
                api,
                given["zone"],
                given["name"],
                timeout=given["timeout"],
                force=given["force"],
                check=module.check_mode,
                progress=progress_of(given),
            )
        )
    done = ensure_requested(
        api,
        _wanted(given),
        timeout=given["timeout"],
        wait=given["wait"],
        check=module.check_mode,
        replace_dead=given["replace_dead"],
        progress=progress_of(given),
    )
    result = result_of(done)
    if done.request:
        result["request"] = facts_of_request(done.request) | {
            "state": done.request.state,
            "error": done.request.error,
        }
    return result


def _wanted(given: dict[str, Any]) -> WantedRequest:
    tpu = {
        **given,
        "name": given["node_name"] or given["name"],
        **dict.fromkeys(_SCHEDULING, False),
    }
    return WantedRequest(
        name=given["name"],
        tpu=wanted_of(tpu),
        count=given["node_count"],
        tier="" if given["tier"] == "on-demand" else given["tier"],
        min_duration=_seconds(given, "min_duration"),
        valid_for=_seconds(given, "valid_for"),
        valid_until=given["valid_until"],
        reservation=given["reservation"],
    )


def _seconds(given: dict[str, Any], key: str) -> int | None:
    return None if given[key] is None else seconds_of(given[key], key)


def main() -> None:
    """Run as a module."""
    node = {key: option for key, option in NODE_OPTIONS.items() if key not in _SCHEDULING}
    texts = ("node_name", "valid_until", "reservation")
    run_cloud_module(
        _run,
        {
            **NAMED_OPTIONS,
            **node,
            **PROGRESS_OPTION,
            **{key: {"type": "str", "default": ""} for key in texts},
            **{key: {"type": "str"} for key in ("min_duration", "valid_for")},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "node_count": {"type": "int", "default": 1},
            "tier": {
                "type": "str",
                "choices": ["on-demand", "spot", "guaranteed"],
                "default": "on-demand",
            },
            "wait": {"type": "bool", "default": True},
            "replace_dead": {"type": "bool", "default": True},
            "force": {"type": "bool", "default": False},
        },
        required_if=NEEDED_TO_MAKE,
    )


if __name__ == "__main__":
    main()
