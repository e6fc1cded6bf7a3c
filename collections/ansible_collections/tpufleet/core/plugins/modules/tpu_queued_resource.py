"""Module tpufleet.core.tpu_queued_resource: request TPUs from Google's queue.

The implementation is in module_utils/cloud/queue_state.py.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: tpu_queued_resource
short_description: Request Cloud TPUs through Google's queue, one or several slices of one run
description:
  - Requests TPUs through Google's queue and waits until they exist. The inventory lists them like
    other TPUs.
  - Use this module to create several TPUs that train one run together (multislice), with
    O(node_count). For single TPUs, set C(queued) in the fleet file instead.
  - A queued resource that failed (FAILED), or whose TPUs were preempted (SUSPENDED), is never tried
    again by Google and holds quota until it is deleted. This module deletes such a queued resource
    of the same name before it creates a new one.
  - It is an error if a queued resource of this name has another tier, or TPUs with other names,
    another type or another runtime version. Other options are not compared.
  - Runs on the controller (C(hosts) or C(delegate_to) V(localhost)), with its Python.
author: tpufleet maintainers
extends_documentation_fragment:
  - tpufleet.core.tpu_api
  - tpufleet.core.tpu_node
  - tpufleet.core.diff_mode
attributes:
  diff_mode:
    description: Shows the queued resource before and after.
options:
  name:
    description: The queued resource's name.
    type: str
    required: true
  zone:
    description: The zone of the queued resource and its TPUs.
    type: str
    required: true
  state:
    description: Whether the queued resource should exist.
    type: str
    choices: [present, absent]
    default: present
  node_name:
    description:
      The TPU's name; with O(node_count) above 1, the part before V(-0), V(-1) and so on. By
      default, it is O(name).
    type: str
    default: ""
  node_count:
    description: The number of TPUs. Several are slices of one run (multislice).
    type: int
    default: 1
  tier:
    description:
      The kind of TPUs. V(spot) TPUs are cheaper and may be preempted at any time. V(guaranteed)
      TPUs stay for O(min_duration). V(on-demand) TPUs are neither spot nor guaranteed.
    type: str
    choices: [on-demand, spot, guaranteed]
    default: on-demand
  min_duration:
    description: For O(tier=guaranteed), how long the TPUs must be guaranteed, such as V(6h).
    type: str
  valid_for:
    description: How long the queued resource may wait in the queue before it fails, such as V(90m),
      V(6h) or V(2d).
    type: str
  valid_until:
    description: The time at which the queued resource fails if it is still in the queue, in the
      format of RFC 3339, such as V(2026-12-01T06:00:00Z).
    type: str
    default: ""
  reservation:
    description: The reservation to take the TPUs from.
    type: str
    default: ""
  wait:
    description: Whether to wait until the TPUs exist, and not only until the queued resource is in
      the queue.
    type: bool
    default: true
  replace_dead:
    description: Whether to delete a queued resource of this name that is FAILED, SUSPENDED or
      SUSPENDING, and create it again. If false, such a queued resource is an error.
    type: bool
    default: true
  force:
    description: Whether to delete a queued resource that has existing TPUs, together with the TPUs.
      By default this is an error.
    type: bool
    default: false
  timeout:
    description: The time limit for all steps together, in seconds. A queued resource that is still
      waiting then stays in the queue.
    type: int
    default: 1800
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
  description: The queued resource with its state, error, tier and the names of its TPUs. C(tier) is
    empty for O(tier=on-demand).
  type: dict
  returned: if the queued resource exists, except with O(state=absent)
  sample: {name: big, zone: us-central2-b, state: ACTIVE, tier: spot, nodes: [big-0, big-1]}
msg:
  description: What the task did, in one line.
  type: str
  returned: always
reason:
  description:
    A code for the cause of the failure, such as C(capacity), C(quota), C(different), C(deadline).
  type: str
  returned: failure
"""

from functools import partial
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.cloud.changes import ChangeOptions, Outcome
from ..module_utils.cloud.errors import InvalidRequest, QuotaError
from ..module_utils.cloud.module import NAMED_OPTIONS, REQUIRED_TO_CREATE, run_cloud_module
from ..module_utils.cloud.names import SCHEDULING_FLAGS
from ..module_utils.cloud.node_spec import NODE_OPTIONS, NodeSpec, parse_duration
from ..module_utils.cloud.queue_state import (
    ensure_not_requested,
    ensure_requested,
    list_zone,
)
from ..module_utils.cloud.queued_resource import QueuedResourceSpec
from ..module_utils.cloud.quota import QuotaExplainer
from ..module_utils.cloud.tpu_api import TpuApi


def _run(module: AnsibleModule, api: TpuApi) -> dict[str, Any]:
    params = module.params
    if params["state"] == "absent":
        return _delete(module, api).result()
    outcome = _create(module, api)
    request = outcome.request
    if request is None:
        return outcome.result()
    status = {"state": request.state, "error": request.error}
    return outcome.result() | {"request": request.compared_fields() | status}


def _delete(module: AnsibleModule, api: TpuApi) -> Outcome:
    params = module.params
    try:
        return ensure_not_requested(
            api,
            params["zone"],
            params["name"],
            ChangeOptions(timeout=params["timeout"], check=module.check_mode),
            force=params["force"],
        )
    except InvalidRequest as error:
        if params["force"]:
            raise
        raise InvalidRequest(f"{error}. To delete its TPUs, too, set force: true") from None


def _create(module: AnsibleModule, api: TpuApi) -> Outcome:
    params = module.params
    spec = _spec(params)
    options = ChangeOptions(
        check=module.check_mode, replace_dead=params["replace_dead"], timeout=params["timeout"]
    )
    try:
        return ensure_requested(api, spec, options, wait=params["wait"])
    except QuotaError as error:
        raise QuotaExplainer(partial(list_zone, api)).explain(error, spec.tpu) from None


def _spec(params: dict[str, Any]) -> QueuedResourceSpec:
    flags = dict.fromkeys(SCHEDULING_FLAGS, False) | {"spot": params["tier"] == "spot"}
    tpu = {**params, "name": params["node_name"] or params["name"], **flags}
    return QueuedResourceSpec(
        name=params["name"],
        tpu=NodeSpec.of_options(tpu),
        count=params["node_count"],
        tier="" if params["tier"] == "on-demand" else params["tier"],
        min_duration=_seconds(params, "min_duration"),
        valid_for=_seconds(params, "valid_for"),
        valid_until=params["valid_until"],
        reservation=params["reservation"],
    )


def _seconds(params: dict[str, Any], key: str) -> int | None:
    return None if params[key] is None else parse_duration(params[key], key)


def main() -> None:
    """Run the module: create or delete the queued resource."""
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
