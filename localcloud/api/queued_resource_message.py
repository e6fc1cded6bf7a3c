"""The QueuedResource message: its fields in each API version, validation and conversion.

Fields and types are those of the schema ``QueuedResource`` in the discovery documents of
tpu.googleapis.com v2 and v2alpha1 (revision 20261001). A stored queued resource has the fields of
both versions, under their v2 names; a response contains only the fields of the requested version.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from localcloud.api.catalog import PARENT
from localcloud.api.clock import parse_timestamp, seconds_of
from localcloud.api.errors import invalid
from localcloud.api.message import Choice, Message, Repeated, StoredAs, read, select_fields
from localcloud.api.node_message import NODE_ID, NODES, checked, checked_id
from localcloud.api.queued_resource_table import QueuedResource
from localcloud.api.versions import Version

_SLICES = {"nodeCount": int, "nodeIdPrefix": str}
_WORKLOADS = ("THROUGHPUT_OPTIMIZED", "AVAILABILITY_OPTIMIZED")
_SPEC = {"parent": str, "nodeId": str}
_POLICY = Message(
    {
        "validAfterDuration": str,
        "validAfterTime": str,
        "validInterval": Message({"startTime": str, "endTime": str}),
        "validUntilDuration": str,
        "validUntilTime": str,
    }
)
_COMMON = {
    "createTime": None,
    "name": None,
    "queueingPolicy": _POLICY,
    "reservationName": str,
    "spot": Message({}),
    "state": None,
}


def _tpu(spec: Mapping[str, Any]) -> Message:
    # SkyPilot sends nodeSpec as an object instead of a list; Google accepts both.
    return Message({"nodeSpec": Repeated(Message({**_SPEC, **spec}), or_one=True)})


_ALPHA_SLICES = {**_SLICES, "workloadType": Choice(_WORKLOADS, "WORKLOAD_TYPE_UNSPECIFIED")}
QUEUED_RESOURCES: Mapping[Version, Message] = {
    Version.V2: Message(
        {
            **_COMMON,
            "guaranteed": Message({"minDuration": str}),
            "tpu": _tpu({"node": NODES[Version.V2], "multisliceParams": Message(_SLICES)}),
        }
    ),
    Version.V2ALPHA1: Message(
        {
            **_COMMON,
            "bestEffort": Message({}),
            "guaranteed": Message({"minDuration": str, "reserved": bool}),
            "provisioningModel": Choice(
                ("STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START"),
                "PROVISIONING_MODEL_UNSPECIFIED",
            ),
            "runDuration": Message({"maxRunDuration": str, "terminationTime": str}),
            "tpu": _tpu(
                {
                    "node": NODES[Version.V2ALPHA1],
                    "multiNodeParams": StoredAs("multisliceParams", Message(_ALPHA_SLICES)),
                }
            ),
        }
    ),
}
TIERS = ("spot", "guaranteed", "bestEffort")
# The longest run duration of Flex-start TPUs
# (https://cloud.google.com/tpu/docs/queued-resources).
LONGEST_FLEX_START_S = 7 * 86400


def read_request(value: Any, zone: str, version: Version) -> dict[str, Any]:
    """Validate the QueuedResource message of a request and return the fields to store.

    Raises HTTP 400 if the message is invalid.
    """
    fields = read(value, QUEUED_RESOURCES[version], "queuedResource")
    tiers = [tier for tier in TIERS if tier in fields]
    if len(tiers) > 1:
        raise invalid(f"queuedResource.{tiers[0]}", f"set only one of {', '.join(tiers)}")
    if (duration := fields.get("guaranteed", {}).get("minDuration")) is not None:
        _time("queuedResource.guaranteed.minDuration", duration, seconds_of)
    _check_model(fields)
    run_end(fields, 0.0)
    if not fields.get("tpu", {}).get("nodeSpec"):
        raise invalid("queuedResource.tpu.nodeSpec", "tpu.nodeSpec must have an entry")
    fields["apiVersion"] = version.node_value
    ids = [node_id for node_id, _ in requested_nodes(fields, zone, "x")]
    if len(set(ids)) < len(ids):
        raise invalid(
            "queuedResource.tpu.nodeSpec", f"two nodes have the same name: {', '.join(ids)}"
        )
    return fields


def _check_model(fields: Mapping[str, Any]) -> None:
    """Raise HTTP 400 if a field that the provisioning model requires is missing or invalid."""
    model = fields.get("provisioningModel")
    if model == "RESERVATION_BOUND" and "reservationName" not in fields:
        raise invalid("queuedResource.reservationName", f"{model} needs reservationName")
    if model != "FLEX_START":
        return
    field = "queuedResource.runDuration.maxRunDuration"
    duration = fields.get("runDuration", {}).get("maxRunDuration")
    if duration is None:
        raise invalid(field, f"{model} needs {field}")
    if not 0 < _time(field, duration, seconds_of) <= LONGEST_FLEX_START_S:
        raise invalid(field, f"{field} is {duration}; {model} allows up to {LONGEST_FLEX_START_S}s")


def run_end(body: Mapping[str, Any], created: float) -> float | None:
    """Return the time at which nodes are terminated, or None if their run duration is unlimited.

    ``created`` is when the nodes are created, ``body`` is the queued resource's body. Times are in
    seconds since 1970. Raises HTTP 400 for an invalid ``runDuration``.
    """
    fields, path = body.get("runDuration", {}), "queuedResource.runDuration"
    if len(fields) > 1:
        raise invalid(path, f"{path}: set only one of {', '.join(sorted(fields))}")
    if "terminationTime" in fields:
        return _time(f"{path}.terminationTime", fields["terminationTime"], parse_timestamp)
    if "maxRunDuration" in fields:
        return created + _time(f"{path}.maxRunDuration", fields["maxRunDuration"], seconds_of)
    return None


def requested_nodes(
    body: Mapping[str, Any], zone: str, request_name: str
) -> list[tuple[str, dict[str, Any]]]:
    """Return the id and body of each node that a queued resource requests.

    ``body`` contains the stored fields of the queued resource. ``request_name`` is its name, which
    is the default prefix of the ids of multislice nodes. Raises HTTP 400 that names an invalid
    field.
    """
    nodes: list[tuple[str, dict[str, Any]]] = []
    for index, spec in enumerate(body["tpu"]["nodeSpec"]):
        path = f"queuedResource.tpu.nodeSpec[{index}]"
        location = f"{PARENT}/locations/{zone}"
        if spec.get("parent") != location:
            raise invalid(f"{path}.parent", f"{path}.parent must be {location}")
        node = checked(_scheduled(spec.get("node", {}), body), zone, f"{path}.node")
        if "multisliceParams" in spec:
            node["multisliceNode"] = True
        nodes += [(node_id, node) for node_id in _node_ids(spec, path, request_name)]
    return nodes


def _node_ids(spec: Mapping[str, Any], path: str, request_name: str) -> Iterator[str]:
    slices = spec.get("multisliceParams")
    if slices is None:
        yield checked_id(f"{path}.nodeId", spec.get("nodeId", ""), NODE_ID)
        return
    if "nodeId" in spec:
        raise invalid(f"{path}.nodeId", "set either nodeId or multisliceParams")
    count = slices.get("nodeCount", 0)
    if count < 2:
        field = f"{path}.multisliceParams.nodeCount"
        raise invalid(field, f"{field} is {count}; it must be greater than 1")
    prefix = slices.get("nodeIdPrefix", request_name)
    for number in range(count):
        field = f"{path}.multisliceParams.nodeIdPrefix"
        yield checked_id(field, f"{prefix}-{number}", NODE_ID)


def _scheduled(node: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``node`` with the queued resource's tier (such as spot) in its schedulingConfig."""
    scheduling = dict(node.get("schedulingConfig", {}))
    if "spot" in body or body.get("provisioningModel") == "SPOT":
        scheduling["spot"] = True
    if "bestEffort" in body:
        scheduling["preemptible"] = True
    if "reservationName" in body or body.get("guaranteed", {}).get("reserved"):
        scheduling["reserved"] = True
    return {**node, "schedulingConfig": scheduling, "apiVersion": body["apiVersion"]}


def validity(body: Mapping[str, Any], now: float) -> tuple[float | None, float | None]:
    """Return the start and end of the interval in which nodes may be created, from queueingPolicy.

    Times are in seconds since 1970; None means no limit. Raises HTTP 400 for an invalid policy.
    """
    policy, field = body.get("queueingPolicy", {}), "queuedResource.queueingPolicy"
    if len(policy) > 1:
        raise invalid(field, f"{field}: set only one of {', '.join(sorted(policy))}")
    bounds: dict[str, float] = {}
    for name, text in policy.items():
        path = f"queuedResource.queueingPolicy.{name}"
        if name == "validInterval":
            for end, moment in text.items():
                bounds[end] = _time(f"{path}.{end}", moment, parse_timestamp)
        else:
            end = "startTime" if "After" in name else "endTime"
            relative = name.endswith("Duration")
            bound = _time(path, text, seconds_of if relative else parse_timestamp)
            bounds[end] = now + bound if relative else bound
    return bounds.get("startTime"), bounds.get("endTime")


def _time(path: str, text: str, reader: Callable[[str], float]) -> float:
    try:
        return reader(text)
    except ValueError as error:
        raise invalid(path, f"{path}: {error}") from None


def write(request: QueuedResource, version: Version) -> dict[str, Any]:
    """Return a queued resource as a message of ``version``."""
    return in_version(stored(request), version)


def in_version(message: Mapping[str, Any], version: Version) -> dict[str, Any]:
    """Convert a message returned by ``stored`` to ``version``."""
    return select_fields(message, QUEUED_RESOURCES[version])


def stored(request: QueuedResource) -> dict[str, Any]:
    """Return a queued resource as an API message with the fields of all API versions."""
    state: dict[str, Any] = {"state": request.state, "stateInitiator": request.initiator}
    # Every state but this one has a field with its details, such as ``activeData``.
    if request.state != "WAITING_FOR_RESOURCES":
        details = {"error": request.error} if request.state == "FAILED" else {}
        state[f"{request.state.lower()}Data"] = details
    return {
        "name": request.name,
        "createTime": request.create_time,
        **request.body,
        "state": state,
    }
