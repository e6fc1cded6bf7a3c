"""A queued resource: a request for TPUs that waits in Google's queue. Pure: no network, no files.

The shape is that of projects.locations.queuedResources in
https://cloud.google.com/tpu/docs/reference/rest. A request whose TPUs failed or were preempted is
dead: it is never tried again, and holds quota until it is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import tpu_errors as errors
from .tpu_nodes import BadNode
from .tpu_shapes import shape_of, type_of_config
from .tpu_wanted import Wanted, check_name

#: States that a request does not come back from.
DEAD_REQUESTS = frozenset({"FAILED", "SUSPENDED"})
_NAME = re.compile(r"projects/([^/\s]+)/locations/([a-z0-9-]+)/queuedResources/([^/\s]+)")
_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Request:
    """A queued resource as it is. ``error`` says why it failed; ``nodes`` are the TPUs' names."""

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
        """Tell this request from a later one of its name."""
        return f"{self.zone}.{self.name}@{self.created}"

    @property
    def where(self) -> str:
        """Name it for people, as in ``sweep (us-central2-b)``."""
        return f"{self.name} ({self.zone})"

    @property
    def dead(self) -> bool:
        """Tell whether it only holds quota."""
        return self.state in DEAD_REQUESTS

    @property
    def chips(self) -> int:
        """Count the chips of all its TPUs; 0 for a type that isn't known."""
        shape = shape_of(self.accelerator_type)
        return shape.chips * len(self.nodes) if shape else 0


@dataclass(frozen=True)
class WantedRequest:
    """A request as it should be: ``count`` TPUs alike; several are slices of one run.

    ``tier`` is ``spot``, ``guaranteed`` or empty (on demand); ``min_duration`` and ``valid_for`` in
    seconds; ``valid_until`` in RFC 3339.
    """

    name: str
    tpu: Wanted
    count: int = 1
    tier: str = ""
    min_duration: int | None = None
    valid_for: int | None = None
    valid_until: str = ""
    reservation: str = ""

    @property
    def where(self) -> str:
        """Name it for people, as in ``sweep (us-central2-b)``."""
        return f"{self.name} ({self.tpu.zone})"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Name its TPUs."""
        if self.count == 1:
            return (self.tpu.name,)
        return tuple(f"{self.tpu.name}-{number}" for number in range(self.count))

    def check(self) -> None:
        """Refuse what can't be one before asking anybody. Raises NotConfigured."""
        check_name(self.name)
        self.tpu.check()
        if self.count < 1:
            raise errors.NotConfigured(f"queued resource {self.where}: count is {self.count}")
        if self.valid_for and self.valid_until:
            raise errors.NotConfigured(
                f"queued resource {self.where}: say either valid_for or valid_until"
            )
        if self.min_duration and self.tier != "guaranteed":
            raise errors.NotConfigured(
                f"queued resource {self.where}: min_duration is for the tier guaranteed"
            )

    def body(self, project: str) -> dict[str, Any]:
        """Give it as the API takes it for a creation; the tier stands in the request alone."""
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
        """Give what people compare, as facts_of_request does."""
        return {
            "name": self.name,
            "zone": self.tpu.zone,
            "accelerator_type": self.tpu.kind,
            "runtime_version": self.tpu.runtime_version,
            "tier": self.tier,
            "nodes": list(self.nodes),
        }

    def differences(self, request: Request) -> list[str]:
        """Name what differs; nothing of a request can be changed."""
        have = facts_of_request(request)
        return [
            f"{key} is {have[key] or 'nothing'}, wanted {want or 'nothing'}"
            for key, want in self.facts().items()
            if have[key] != want
        ]


def facts_of_request(request: Request) -> dict[str, Any]:
    """Give what people compare of a request."""
    return {
        "name": request.name,
        "zone": request.zone,
        "accelerator_type": request.accelerator_type,
        "runtime_version": request.runtime_version,
        "tier": request.tier,
        "nodes": list(request.nodes),
    }


def parse_request(data: Mapping[str, Any]) -> Request:
    """Read a queued resource of the API's JSON. Raises BadNode (one line) for what is none."""
    full_name = data.get("name")
    found = _NAME.fullmatch(full_name) if isinstance(full_name, str) else None
    if not found:
        raise BadNode(
            "a queued resource's name reads projects/…/locations/…/queuedResources/…, but the API "
            f"sent {full_name!r:.80}"
        )
    zone, name = found[2], found[3]
    who = f"queued resource {name} ({zone})"
    state = _part(data, "state", who)
    specs = _part(data, "tpu", who).get("nodeSpec")
    specs = specs if isinstance(specs, list) else []
    nodes: list[str] = []
    for spec in specs:
        if not isinstance(spec, Mapping):
            raise BadNode(f"{who}: nodeSpec is {spec!r:.60}, which the Cloud TPU API never answers")
        slices = _part(spec, "multisliceParams", who)
        prefix, count = slices.get("nodeIdPrefix") or name, slices.get("nodeCount", 0)
        if slices and isinstance(count, int):
            nodes += [f"{prefix}-{number}" for number in range(min(count, 10_000))]
        elif spec.get("nodeId"):
            nodes.append(str(spec["nodeId"]))
    node = _part(specs[0], "node", who) if specs else {}
    config = _part(node, "acceleratorConfig", who)
    policy = _part(data, "queueingPolicy", who)
    error = _part(_part(state, "failedData", who), "error", who)
    return Request(
        zone=zone,
        name=name,
        state=str(state.get("state") or "UNKNOWN"),
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


def seconds_of(text: object, who: str) -> int:
    """Read ``90``, ``90s``, ``15m``, ``6h`` or ``2d`` into seconds. Raises NotConfigured."""
    found = _DURATION.fullmatch(str(text))
    if not found or isinstance(text, bool):
        raise errors.NotConfigured(f"{who} is {text!r:.40}, wanted is a time such as 6h, 90m or 2d")
    return int(found[1]) * _SECONDS[found[2]]


def _part(data: Mapping[str, Any], key: str, who: str) -> Mapping[str, Any]:
    part = data.get(key)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise BadNode(f"{who}: {key} is {part!r:.60}, which the Cloud TPU API never answers")
    return part
