"""The module tpufleet.core.tpu_queued_resource: requests TPUs from Google's queue.

module_utils/cloud/queue_state.py implements it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_queued_resource
short_description: Request Cloud TPUs through Google's queue, one or several slices of one run
description:
  - Puts a request for TPUs into the queue and waits until they exist. The inventory lists them like
    any other TPU.
  - This is the way to create TPUs that are slices of one run (multislice), by O(node_count). For
    single TPUs, C(queued) in the fleet file does the same.
  - Google never tries a request again that failed, or whose TPUs were preempted, and it holds quota
    until it is deleted. This module deletes its own dead request, which has no living TPU, before
    it creates a new one.
  - Runs on the controller (C(hosts) or C(delegate_to) V(localhost)), with its Python.
author: tpufleet maintainers
extends_documentation_fragment: [tpufleet.core.tpu_api, tpufleet.core.tpu_node]
attributes:
  check_mode:
    description: Changes nothing, and returns what would change.
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
    description: Whether the request should exist.
    type: str
    choices: [present, absent]
    default: present
  node_name:
    description:
      The TPU's name; with O(node_count) above 1, the part before V(-0), V(-1) and so on. By default
      O(name).
    type: str
    default: ""
  node_count:
    description: The number of TPUs. Several are slices of one run (multislice).
    type: int
    default: 1
  tier:
    description:
      V(spot) is cheaper and may be preempted at any time; V(guaranteed) stays for
      O(min_duration); V(on-demand) is neither.
    type: str
    choices: [on-demand, spot, guaranteed]
    default: on-demand
  min_duration:
    description: How long the TPUs must stay, such as V(6h); for O(tier=guaranteed).
    type: str
  valid_for:
    description: How long to wait in the queue, such as V(90m), V(6h) or V(2d); then it fails.
    type: str
  valid_until:
    description: Until when to wait in the queue, in RFC 3339, such as V(2026-12-01T06:00:00Z).
    type: str
    default: ""
  reservation:
    description: The reservation to take the TPUs from.
    type: str
    default: ""
  wait:
    description: Wait until the TPUs exist, not only until the request is in the queue.
    type: bool
    default: true
  replace_dead:
    description: Delete a dead request of this name, and create it again.
    type: bool
    default: true
  force:
    description: Delete a request with its living TPUs, which is an error otherwise.
    type: bool
    default: false
  timeout:
    description: For everything, in seconds. The request stays in the queue after it.
    type: int
    default: 1800
  accelerator_type:
    description: The type of each TPU, such as V(v4-16); or O(accelerator_config).
    type: str
    default: ""
  runtime_version:
    description: The workers' image, such as V(tpu-ubuntu2204-base). Creating TPUs needs it.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Request two slices of one run, for at most six hours, without waiting for them
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

- name: Delete the request and its TPUs
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
  returned: if it exists
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

from functools import partial
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.cloud.errors import QuotaError
from ..module_utils.cloud.module import NAMED_OPTIONS, REQUIRED_TO_CREATE, run_cloud_module
from ..module_utils.cloud.names import SCHEDULING_FLAGS
from ..module_utils.cloud.node_spec import NODE_OPTIONS, NodeSpec, parse_duration
from ..module_utils.cloud.queue_state import (
    QueuedOutcome,
    ensure_not_requested,
    ensure_requested,
    list_zone,
)
from ..module_utils.cloud.queued_resource import QueuedResourceSpec
from ..module_utils.cloud.quota import QuotaExplainer
from ..module_utils.cloud.tpu_api import TpuApi


def _run(module: AnsibleModule, api: TpuApi) -> dict[str, Any]:
    given = module.params
    if given["state"] == "absent":
        return ensure_not_requested(
            api,
            given["zone"],
            given["name"],
            timeout=given["timeout"],
            force=given["force"],
            check=module.check_mode,
        ).result()
    outcome = _create(module, api)
    request = outcome.request
    if request is None:
        return outcome.result()
    status = {"state": request.state, "error": request.error}
    return outcome.result() | {"request": request.facts() | status}


def _create(module: AnsibleModule, api: TpuApi) -> QueuedOutcome:
    given = module.params
    spec = _spec(given)
    try:
        return ensure_requested(
            api,
            spec,
            timeout=given["timeout"],
            wait=given["wait"],
            check=module.check_mode,
            replace_dead=given["replace_dead"],
        )
    except QuotaError as refused:
        raise QuotaExplainer(partial(list_zone, api)).explain(refused, spec.tpu) from None


def _spec(given: dict[str, Any]) -> QueuedResourceSpec:
    flags = dict.fromkeys(SCHEDULING_FLAGS, False) | {"spot": given["tier"] == "spot"}
    tpu = {**given, "name": given["node_name"] or given["name"], **flags}
    return QueuedResourceSpec(
        name=given["name"],
        tpu=NodeSpec.of_options(tpu),
        count=given["node_count"],
        tier="" if given["tier"] == "on-demand" else given["tier"],
        min_duration=_seconds(given, "min_duration"),
        valid_for=_seconds(given, "valid_for"),
        valid_until=given["valid_until"],
        reservation=given["reservation"],
    )


def _seconds(given: dict[str, Any], key: str) -> int | None:
    return None if given[key] is None else parse_duration(given[key], key)


def main() -> None:
    """Run the module."""
    node = {key: option for key, option in NODE_OPTIONS.items() if key not in SCHEDULING_FLAGS}
    texts = ("node_name", "valid_until", "reservation")
    run_cloud_module(
        _run,
        {
            **NAMED_OPTIONS,
            **node,
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
        required_if=REQUIRED_TO_CREATE,
    )


if __name__ == "__main__":
    main()
