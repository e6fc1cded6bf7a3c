"""Queued resources: requests for TPUs that wait in Google's queue.

The shape is that of projects.locations.queuedResources in
https://cloud.google.com/tpu/docs/reference/rest. A queued resource whose TPUs failed or were
preempted is dead: Google never tries it again, and it holds quota until it is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..worker.node_identity import NODE_NAME, ZONE
from . import errors
from .deletion import Found, delete_exactly
from .disks import ensure_disks
from .errors import BadAnswer, NotConfigured
from .names import PROJECT, check_name, last_part
from .node_spec import NodeSpec
from .nodes import Node
from .outcome import Outcome
from .refusals import explain_refusal
from .shapes import chips_of, type_of_config
from .tpu_api import TpuApi

Progress = Callable[[str], None]

#: States that a queued resource never leaves.
DEAD_STATES = frozenset({"FAILED", "SUSPENDED"})
_GOING_STATES = ("DELETING", "SUSPENDING")
_FULL_NAME = re.compile(rf"projects/(?:{PROJECT})/locations/({ZONE})/queuedResources/({NODE_NAME})")
_STATE = re.compile(r"[A-Z_]{0,40}")
_MAX_SLICES = 10_000


@dataclass(frozen=True)
class QueuedResource:
    """A queued resource as the API reports it.

    Args:
        tier: ``spot``, ``guaranteed`` or empty (on demand).
        error: why it failed, in one line.
        nodes: the names of its TPUs.
    """

    zone: str
    name: str
    state: str
    initiator: str
    error: str
    created: str
    accelerator_type: str
    runtime_version: str
    tier: str
    valid_until: str
    nodes: tuple[str, ...]

    @property
    def key(self) -> str:
        """What no later queued resource of its name has."""
        return f"{self.zone}.{self.name}@{self.created}"

    @property
    def where(self) -> str:
        """Name and zone for people: ``sweep (us-central2-b)``."""
        return f"{self.name} ({self.zone})"

    @property
    def is_dead(self) -> bool:
        """It only holds quota."""
        return self.state in DEAD_STATES

    @property
    def is_preemptible(self) -> bool:
        """The cloud may take its TPUs back at any time."""
        return self.tier == "spot"

    @property
    def chips(self) -> int:
        """The chips of all its TPUs; 0 for an unknown type."""
        return chips_of(self.accelerator_type) * len(self.nodes)

    def facts(self) -> dict[str, Any]:
        """Return what a diff shows."""
        return {
            "name": self.name,
            "zone": self.zone,
            "accelerator_type": self.accelerator_type,
            "runtime_version": self.runtime_version,
            "tier": self.tier,
            "nodes": list(self.nodes),
        }


@dataclass(frozen=True)
class QueuedResourceSpec:
    """Desired state of a queued resource.

    Args:
        tpu: each of its TPUs.
        count: the number of TPUs; several are slices of one run (multislice).
        tier: ``spot``, ``guaranteed`` or empty (on demand).
        min_duration: seconds that guaranteed TPUs must stay.
        valid_for: seconds that it may wait in the queue.
        valid_until: the time that it may wait until, in RFC 3339.
    """

    name: str
    tpu: NodeSpec
    count: int = 1
    tier: str = ""
    min_duration: int | None = None
    valid_for: int | None = None
    valid_until: str = ""
    reservation: str = ""

    @property
    def where(self) -> str:
        """Name and zone for people: ``sweep (us-central2-b)``."""
        return f"{self.name} ({self.tpu.zone})"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its TPUs."""
        if self.count == 1:
            return (self.tpu.name,)
        return tuple(f"{self.tpu.name}-{number}" for number in range(self.count))

    def check(self) -> None:
        """Check everything that needs no request. Raises NotConfigured."""
        check_name(self.name)
        self.tpu.check()
        if self.count < 1:
            raise NotConfigured(f"queued resource {self.where}: count is {self.count}")
        if self.valid_for and self.valid_until:
            raise NotConfigured(
                f"queued resource {self.where}: set either valid_for or valid_until"
            )
        if self.min_duration and self.tier != "guaranteed":
            raise NotConfigured(
                f"queued resource {self.where}: min_duration needs the tier guaranteed"
            )

    def body(self, project: str) -> dict[str, Any]:
        """Return it as the API takes it for a creation; the tier is not repeated in the node."""
        node = self.tpu.body(project)
        node.pop("schedulingConfig", None)
        spec: dict[str, Any] = {
            "parent": f"projects/{project}/locations/{self.tpu.zone}",
            "node": node,
        }
        if self.count == 1:
            spec["nodeId"] = self.tpu.name
        else:
            spec["multisliceParams"] = {"nodeCount": self.count, "nodeIdPrefix": self.tpu.name}
        body: dict[str, Any] = {"tpu": {"nodeSpec": [spec]}}
        if self.tier == "spot":
            body["spot"] = {}
        if self.tier == "guaranteed":
            body["guaranteed"] = (
                {"minDuration": f"{self.min_duration}s"} if self.min_duration else {}
            )
        if self.valid_for:
            body["queueingPolicy"] = {"validUntilDuration": f"{self.valid_for}s"}
        if self.valid_until:
            body["queueingPolicy"] = {"validUntilTime": self.valid_until}
        if self.reservation:
            path = f"projects/{project}/locations/{self.tpu.zone}/reservations/{self.reservation}"
            body["reservationName"] = self.reservation if "/" in self.reservation else path
        return body

    def facts(self) -> dict[str, Any]:
        """Return what a diff shows, as QueuedResource.facts does."""
        return {
            "name": self.name,
            "zone": self.tpu.zone,
            "accelerator_type": self.tpu.kind,
            "runtime_version": self.tpu.runtime_version,
            "tier": self.tier,
            "nodes": list(self.nodes),
        }

    def differences(self, request: QueuedResource) -> list[str]:
        """Describe what differs; nothing of a queued resource can be changed."""
        observed = request.facts()
        return [
            f"{key} is {observed[key] or 'nothing'}, expected {desired or 'nothing'}"
            for key, desired in self.facts().items()
            if observed[key] != desired
        ]


@dataclass(frozen=True)
class QueuedOutcome(Outcome):
    """The outcome for a queued resource."""

    request: QueuedResource | None = None


def parse_queued_resource(data: Mapping[str, Any]) -> QueuedResource:
    """Validate a queued resource of the API's JSON. Raises BadAnswer."""
    full_name = data.get("name")
    found = _FULL_NAME.fullmatch(full_name) if isinstance(full_name, str) else None
    if not found:
        raise BadAnswer(
            "malformed API response: expected a queued resource's name as "
            f"projects/…/locations/…/queuedResources/… ({full_name!r:.80})"
        )
    zone, name = found[1], found[2]
    who = f"queued resource {name} ({zone})"
    state = _part(data, "state", who)
    state_name = str(state.get("state") or "UNKNOWN")
    if not _STATE.fullmatch(state_name):
        raise BadAnswer(f"{who}: malformed API response: state is {state_name!r:.60}")
    specs = _part(data, "tpu", who).get("nodeSpec")
    specs = specs if isinstance(specs, list) else []
    nodes = [node for spec in specs for node in _nodes_of(spec, name, who)]
    node = _part(specs[0], "node", who) if specs else {}
    config = _part(node, "acceleratorConfig", who)
    policy = _part(data, "queueingPolicy", who)
    error = _part(_part(state, "failedData", who), "error", who)
    return QueuedResource(
        zone=zone,
        name=name,
        state=state_name,
        initiator=str(state.get("stateInitiator") or ""),
        error=errors.one_line(error.get("message") or ""),
        created=str(data.get("createTime") or ""),
        accelerator_type=str(node.get("acceleratorType") or "")
        or type_of_config(str(config.get("type") or ""), str(config.get("topology") or "")),
        runtime_version=str(node.get("runtimeVersion") or ""),
        tier="spot" if "spot" in data else "guaranteed" if "guaranteed" in data else "",
        valid_until=str(policy.get("validUntilTime") or ""),
        nodes=tuple(nodes),
    )


def _nodes_of(spec: object, name: str, who: str) -> list[str]:
    if not isinstance(spec, Mapping):
        raise BadAnswer(f"{who}: malformed API response: nodeSpec is {spec!r:.60}")
    slices = _part(spec, "multisliceParams", who)
    count = slices.get("nodeCount", 0)
    if slices and isinstance(count, int):
        prefix = str(slices.get("nodeIdPrefix") or name)
        nodes = [f"{prefix}-{number}" for number in range(min(count, _MAX_SLICES))]
    else:
        nodes = [str(spec["nodeId"])] if spec.get("nodeId") else []
    for node in nodes[:1]:
        if not re.fullmatch(NODE_NAME, node):
            raise BadAnswer(f"{who}: invalid TPU name ({node!r:.80})")
    return nodes


def _part(data: Mapping[str, Any], key: str, who: str) -> Mapping[str, Any]:
    part = data.get(key)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise BadAnswer(f"{who}: malformed API response: {key} is {part!r:.60}")
    return part


def ensure_requested(
    api: TpuApi,
    spec: QueuedResourceSpec,
    *,
    timeout: float,
    wait: bool = True,
    check: bool = False,
    replace_dead: bool = True,
    progress: Progress = lambda _text: None,
) -> QueuedOutcome:
    """Put the request into the queue; with ``wait`` until its TPUs exist (ACTIVE).

    A dead queued resource of the name, which has no living TPU, is deleted first unless
    ``replace_dead`` is false. ``timeout`` in seconds. Raises CloudError; Different for a living
    one that differs from the spec, QuotaError and CapacityError for one that failed.
    """
    spec.check()
    zone, name = spec.tpu.zone, spec.name
    deadline = api.polling.deadline_in(timeout)
    request = _read(api, zone, name)
    before = request.facts() if request else {}
    if request and not request.is_dead and request.state not in _GOING_STATES:
        differences = spec.differences(request)
        if differences:
            raise errors.Different(
                f"queued resource {request.where} exists, but {'; '.join(differences)}, which "
                "can't be changed. Delete it (state: absent) and create it again"
            )
        if wait and not check:
            request = _wait_active(api, request, deadline, progress)
        msg = f"queued resource {request.where} is {request.state}"
        return QueuedOutcome(False, msg, before, before, request)
    if request and request.is_dead and not replace_dead:
        raise errors.Different(
            f"queued resource {request.where} is {request.state} and is never tried again"
            + (f" ({request.error})" if request.error else "")
            + ". Delete it (state: absent), or set replace_dead: true"
        )
    if check:
        msg = f"queued resource {spec.where} would be created"
        return QueuedOutcome(True, msg, before, spec.facts(), request)
    if request:
        _delete(api, request, deadline, False, progress)
    if spec.tpu.disks_to_create:
        ensure_disks(api.compute, spec.tpu, deadline=deadline, progress=progress)
    operation = _create(api, spec)
    api.wait(operation, f"create queued resource {spec.where}", deadline)
    made = _read(api, zone, name)
    if made is None:
        raise errors.OperationFailed(
            f"can't create queued resource {spec.where}: it existed and is gone"
        )
    if wait:
        made = _wait_active(api, made, deadline, progress)
    msg = f"queued resource {spec.where} is created and {made.state}"
    return QueuedOutcome(True, msg, before, spec.facts(), made)


def ensure_not_requested(
    api: TpuApi,
    zone: str,
    name: str,
    *,
    timeout: float,
    force: bool = False,
    check: bool = False,
    agreed: Collection[str] | None = None,
    progress: Progress = lambda _text: None,
) -> QueuedOutcome:
    """Delete a queued resource: the one that exists now. ``force`` deletes its TPUs, too.

    ``agreed`` are those that may be deleted, by QueuedResource.key; None: any. Raises Different.
    """
    request = _read(api, zone, name)
    if request is None:
        return QueuedOutcome(False, f"queued resource {name} ({zone}) does not exist", {}, {})
    if agreed is not None and request.key not in agreed:
        raise errors.Different(
            f"queued resource {request.where} was created after you were asked whether to delete "
            "it, so it stays. To delete it, too, run this again"
        )
    if not check:
        _delete(api, request, api.polling.deadline_in(timeout), force, progress)
    msg = f"queued resource {request.where} {'would be' if check else 'is'} deleted"
    return QueuedOutcome(True, msg, request.facts(), {}, request)


def queued_resource_of(api: TpuApi, node: Node) -> QueuedResource | None:
    """Return the queued resource that created this TPU and no other; None if there is none."""
    if not node.queued_resource or node.multislice:
        return None
    request = _read(api, node.zone, last_part(node.queued_resource))
    return request if request and request.nodes == (node.name,) else None


def _read(api: TpuApi, zone: str, name: str) -> QueuedResource | None:
    found = api.get_queued_resource(zone, name)
    return None if found is None else parse_queued_resource(found)


def _create(api: TpuApi, spec: QueuedResourceSpec) -> Mapping[str, Any]:
    try:
        body = spec.body(api.settings.project)
        return api.create_queued_resource(spec.tpu.zone, spec.name, body)
    except (errors.AlreadyExists, errors.NoAnswer):
        # Another controller was quicker, or an earlier try of this one took effect: reading it
        # decides. A TPU of the name without such a queued resource is an AlreadyExists, too.
        request = _read(api, spec.tpu.zone, spec.name)
        if request is None or spec.differences(request):
            raise
        return {}
    except (errors.InvalidRequest, errors.NotFound, errors.Forbidden) as refused:
        raise explain_refusal(api, refused, spec.tpu) from None


def _wait_active(
    api: TpuApi, seen: QueuedResource, deadline: float, progress: Progress
) -> QueuedResource:
    what = f"wait for queued resource {seen.where} to be ACTIVE"
    request: QueuedResource | None = seen
    tried = 0
    while True:
        if request is None or request.key != seen.key:
            raise errors.OperationFailed(f"can't {what}: it existed and is gone")
        if request.state == "ACTIVE":
            return request
        if request.is_dead:
            raise _failure(request, what)
        progress(request.state)
        try:
            api.polling.pause(what, tried, deadline)
        except errors.DeadlineExceeded as late:
            raise errors.DeadlineExceeded(
                f"queued resource {request.where} is still {request.state}: {late}"
            ) from None
        tried += 1
        request = _read(api, seen.zone, seen.name)


def _failure(request: QueuedResource, what: str) -> errors.CloudError:
    message = request.error or f"it is {request.state}"
    if "quota" in message.lower():
        return errors.QuotaError(f"can't {what}: {message}")
    if "capacity" in message.lower():
        return errors.CapacityError(f"can't {what}: {message} (try another zone, or again later)")
    return errors.OperationFailed(f"can't {what}: {message}")


def _delete(
    api: TpuApi, request: QueuedResource, deadline: float, force: bool, progress: Progress
) -> None:
    what = f"delete queued resource {request.where}"

    def look() -> Found | None:
        found = _read(api, request.zone, request.name)
        return found and Found(found.created, found.state, found.state in _GOING_STATES)

    def delete() -> Mapping[str, Any] | None:
        try:
            return api.delete_queued_resource(request.zone, request.name, force=force)
        except errors.InvalidRequest as refused:
            if force:
                raise
            raise errors.InvalidRequest(
                f"{refused}. To delete its TPUs ({', '.join(request.nodes)}), too, set force: true"
            ) from None

    delete_exactly(
        what,
        request.created,
        look=look,
        delete=delete,
        wait=lambda operation: api.wait(operation, what, deadline, lambda: progress("DELETING")),
        pause=lambda tried: api.polling.pause(what, tried, deadline),
        progress=progress,
    )
