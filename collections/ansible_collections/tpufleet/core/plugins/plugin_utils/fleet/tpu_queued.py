"""TPUs of the fleet that come through Google's queue, and requests that nothing came of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from ...module_utils.cloud.tpu_api import TpuApi
from ...module_utils.cloud.tpu_lifecycle import OwnerCheck, ensure_absent, ensure_present
from ...module_utils.cloud.tpu_nodes import DEAD_STATES, Node
from ...module_utils.cloud.tpu_queue import ensure_not_requested, ensure_requested
from ...module_utils.cloud.tpu_requests import Request, WantedRequest
from ...module_utils.cloud.tpu_wanted import Outcome, outcome_of
from .fleet import FleetTpu


def request_for(tpu: FleetTpu) -> WantedRequest:
    """Give the request of a queued TPU: one of the TPU's own name, in its one zone."""
    choice = tpu.choices[0]
    valid_for = tpu.queued.valid_for if tpu.queued else None
    tier = "spot" if choice.spot else ""
    return WantedRequest(tpu.name, choice, tier=tier, valid_for=valid_for)


def have_queued(
    api: TpuApi,
    tpu: FleetTpu,
    present: Node | None,
    *,
    timeout: float,
    check: bool,
    replace_dead: bool,
    tell: Callable[[str], None],
    check_owner: OwnerCheck = lambda _node: None,
) -> Outcome:
    """Have a TPU that is not there, or dead, come through the queue, and wait until it is READY."""
    wanted, choice = request_for(tpu), tpu.choices[0]
    if present:
        check_owner(present)
    if check:
        foretold = ensure_requested(
            api, wanted, timeout=timeout, check=True, replace_dead=replace_dead
        )
        outcome = outcome_of(choice, present, True, created=True)
        return replace(outcome, msg=foretold.msg)
    if present and present.state in DEAD_STATES and not present.queued_resource:
        ensure_absent(api, present.zone, present.name, timeout=timeout, agreed={present.key})
    for _ in range(2):
        done = ensure_requested(
            api, wanted, timeout=timeout, replace_dead=replace_dead, progress=tell
        )
        if done.changed or api.get_node(choice.zone, choice.name) is not None:
            break
        # Its TPU was deleted by itself, so this request will never make another.
        ensure_not_requested(
            api,
            choice.zone,
            wanted.name,
            timeout=timeout,
            agreed={done.request.key} if done.request else (),
            progress=tell,
        )
    outcome = ensure_present(api, choice, timeout=timeout, progress=tell, check_owner=check_owner)
    return replace(outcome_of(choice, present, True, outcome.node, created=True), msg=done.msg)


def waiting(
    requests: Iterable[Request], nodes: Iterable[Node], named: Collection[tuple[str, str]]
) -> list[Request]:
    """Find the named requests (name and zone, empty for any) that have no TPU to be deleted with.

    Left alone, they would make one later, or hold quota.
    """
    there = {(node.zone, node.name) for node in nodes}
    return [
        request
        for request in requests
        if ((request.name, request.zone) in named or (request.name, "") in named)
        and not any((request.zone, name) in there for name in request.nodes)
    ]


def described(request: Request) -> dict[str, Any]:
    """Give what a person wants to know of a request before deleting it."""
    kind = f"{request.accelerator_type}{', spot' if request.tier == 'spot' else ''}"
    return {
        "name": request.name,
        "zone": request.zone,
        "id": request.key,
        "state": request.state,
        "accelerator_type": request.accelerator_type,
        "chips": request.chips,
        "error": request.error,
        "words": f"queued resource {request.name} ({request.zone}, {kind}, {request.state})",
    }
