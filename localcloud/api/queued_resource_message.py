"""The QueuedResource message: what a caller may ask for, and how the cloud writes one.

Fields and types are those of the schema ``QueuedResource`` in the discovery document of
tpu.googleapis.com v2 (revision 20261001).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api.clock import moment_of, seconds_of
from localcloud.api.errors import invalid
from localcloud.api.node_message import NODE, Message, Repeated, read
from localcloud.api.node_request import NodeRequest, checked_node_id, requested
from localcloud.api.queued_resource_table import QueuedResource

_NODE_SPEC = Message(
    {
        "parent": str,
        "nodeId": str,
        "multisliceParams": Message({"nodeCount": int, "nodeIdPrefix": str}),
        "node": NODE,
    }
)
_POLICY = Message(
    {
        "validAfterDuration": str,
        "validAfterTime": str,
        "validInterval": Message({"startTime": str, "endTime": str}),
        "validUntilDuration": str,
        "validUntilTime": str,
    }
)
QUEUED_RESOURCE = Message(
    {
        "createTime": None,
        "guaranteed": Message({"minDuration": str}),
        "name": None,
        "queueingPolicy": _POLICY,
        "reservationName": str,
        "spot": Message({}),
        "state": None,
        "tpu": Message({"nodeSpec": Repeated(_NODE_SPEC)}),
    }
)
# The field of QueuedResourceState that says more of a state; WAITING_FOR_RESOURCES has none.
_DATA = {
    "ACCEPTED": "acceptedData",
    "ACTIVE": "activeData",
    "CREATING": "creatingData",
    "DELETING": "deletingData",
    "FAILED": "failedData",
    "PROVISIONING": "provisioningData",
    "SUSPENDED": "suspendedData",
    "SUSPENDING": "suspendingData",
}


@dataclass(frozen=True)
class WantedNode:
    """One node that a queued resource is to make."""

    node_id: str
    request: NodeRequest
    multislice: bool


def read_request(value: Any, parent: str, zone: str) -> dict[str, Any]:
    """Check what a caller asked for and give it in canonical JSON; raise a 400 or 404."""
    said = read(value, QUEUED_RESOURCE, "queuedResource")
    if "spot" in said and "guaranteed" in said:
        raise invalid("queuedResource.spot", "spot and guaranteed exclude each other")
    if (duration := said.get("guaranteed", {}).get("minDuration")) is not None:
        _time("queuedResource.guaranteed.minDuration", duration, seconds_of)
    if not said.get("tpu", {}).get("nodeSpec"):
        raise invalid("queuedResource.tpu.nodeSpec", "tpu.nodeSpec must have an entry")
    ids = [node.node_id for node in wanted_nodes(said, parent, zone, "x")]
    if len(set(ids)) < len(ids):
        raise invalid("queuedResource.tpu.nodeSpec", f"two nodes have one name: {', '.join(ids)}")
    return said


def wanted_nodes(
    body: Mapping[str, Any], parent: str, zone: str, request_name: str
) -> list[WantedNode]:
    """Give the nodes that a request's body asks for; raise a 400 naming the field."""
    found: list[WantedNode] = []
    for index, spec in enumerate(body["tpu"]["nodeSpec"]):
        path = f"queuedResource.tpu.nodeSpec[{index}]"
        location = f"{parent}/locations/{zone}"
        if spec.get("parent") != location:
            raise invalid(f"{path}.parent", f"{path}.parent must be {location}")
        node = requested(_scheduled(spec.get("node", {}), body), parent, zone, f"{path}.node")
        multislice = "multisliceParams" in spec
        ids = _node_ids(spec, path, request_name)
        found += [WantedNode(node_id, node, multislice) for node_id in ids]
    return found


def _node_ids(spec: Mapping[str, Any], path: str, request_name: str) -> Iterator[str]:
    slices = spec.get("multisliceParams")
    if slices is None:
        yield checked_node_id(f"{path}.nodeId", spec.get("nodeId", ""))
        return
    if "nodeId" in spec:
        raise invalid(f"{path}.nodeId", "nodeId and multisliceParams exclude each other")
    count = slices.get("nodeCount", 0)
    if count < 2:
        field = f"{path}.multisliceParams.nodeCount"
        raise invalid(field, f"{field} is {count}; it must be greater than 1")
    prefix = slices.get("nodeIdPrefix", request_name)
    for number in range(count):
        yield checked_node_id(f"{path}.multisliceParams.nodeIdPrefix", f"{prefix}-{number}")


def _scheduled(node: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Give the node that is asked for with its request's tier in its scheduling."""
    scheduling = dict(node.get("schedulingConfig", {}))
    if "spot" in body:
        scheduling["spot"] = True
    if "reservationName" in body:
        scheduling["reserved"] = True
    return {**node, "schedulingConfig": scheduling}


def validity(body: Mapping[str, Any], now: float) -> tuple[float | None, float | None]:
    """Read from when and until when nodes may be made, in seconds since 1970; raise a 400."""
    policy = body.get("queueingPolicy", {})
    if len(policy) > 1:
        names = ", ".join(sorted(policy))
        raise invalid("queuedResource.queueingPolicy", f"only one of {names} can be said")
    bounds: dict[str, float] = {}
    for name, text in policy.items():
        path = f"queuedResource.queueingPolicy.{name}"
        if name == "validInterval":
            for end, moment in text.items():
                bounds[end] = _time(f"{path}.{end}", moment, moment_of)
        else:
            end = "startTime" if "After" in name else "endTime"
            relative = name.endswith("Duration")
            when = _time(path, text, seconds_of if relative else moment_of)
            bounds[end] = now + when if relative else when
    return bounds.get("startTime"), bounds.get("endTime")


def _time(path: str, text: str, reader: Callable[[str], float]) -> float:
    try:
        return reader(text)
    except ValueError as error:
        raise invalid(path, f"{path}: {error}") from None


def write(request: QueuedResource, parent: str) -> dict[str, Any]:
    """Write a stored request as the API does; ``parent`` is its project's name."""
    state: dict[str, Any] = {"state": request.state, "stateInitiator": request.initiator}
    if (data := _DATA.get(request.state)) is not None:
        state[data] = {}
    if request.state == "FAILED":
        state["failedData"] = {"error": request.error}
    return {
        "name": f"{parent}/locations/{request.zone}/queuedResources/{request.request_name}",
        "createTime": request.create_time,
        **request.body,
        "state": state,
    }
