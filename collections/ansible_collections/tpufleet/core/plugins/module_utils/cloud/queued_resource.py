"""Queued resources, existing and desired: requests for TPUs that wait in Google's queue.

Format: projects.locations.queuedResources in
https://cloud.google.com/tpu/docs/reference/rest. A queued resource whose TPUs failed or were
preempted is dead: Google never retries it, and it holds quota until it is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..worker.node_identity import REQUEST_NAME_PATTERN
from .errors import BadAnswer, NotConfigured, one_line
from .fields import Fields, check_name, path_parts
from .names import ZonalResource
from .shapes import chips_of, type_of_config

if TYPE_CHECKING:
    from .node_spec import NodeSpec

_MAX_SLICES = 10_000


@dataclass(frozen=True)
class QueuedResource(ZonalResource):
    """A queued resource as the API reports it.

    Args:
        tier: ``spot``, ``guaranteed`` or empty (on demand).
        error: one-line error message if the queued resource failed, else empty.
        created: creation time, in RFC 3339.
        nodes: the names of the requested TPUs.
        labels: the labels of the requested TPUs.
    """

    zone: str
    name: str
    state: str
    error: str
    created: str
    accelerator_type: str
    runtime_version: str
    tier: str
    nodes: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Unique key. A later queued resource of the same name has another one."""
        return f"{self.zone}.{self.name}@{self.created}"

    @property
    def is_dead(self) -> bool:
        """Whether the queued resource failed or lost its TPUs. It then only holds quota."""
        return self.state in ("FAILED", "SUSPENDED")

    @property
    def is_ending(self) -> bool:
        """Whether Google is deleting or suspending the queued resource."""
        return self.state in ("DELETING", "SUSPENDING")

    @property
    def is_being_deleted(self) -> bool:
        """Whether the deletion of the queued resource has begun."""
        return self.state == "DELETING"

    @property
    def is_preemptible(self) -> bool:
        """Whether the cloud may take the TPUs back at any time."""
        return self.tier == "spot"

    @property
    def chips(self) -> int:
        """The number of chips of all TPUs together; 0 for an unknown accelerator type."""
        return chips_of(self.accelerator_type) * len(self.nodes)

    def compared_fields(self) -> dict[str, Any]:
        """Return the fields that are compared with the desired state and shown in a diff."""
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
        tpu: the desired state of each TPU.
        count: the number of TPUs; several TPUs form a multislice.
        tier: ``spot``, ``guaranteed`` or empty (on demand).
        min_duration: the minimum time in seconds for which ``guaranteed`` TPUs run.
        valid_for: the maximum time in seconds that the queued resource waits in the queue.
        valid_until: the time at which the queued resource stops waiting, in RFC 3339.
        reservation: name or full API path of the reservation to use; empty for none.
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
        """Name and zone for messages: ``sweep (us-central2-b)``."""
        return f"{self.name} ({self.tpu.zone})"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the TPUs to create."""
        if self.count == 1:
            return (self.tpu.name,)
        return tuple(f"{self.tpu.name}-{number}" for number in range(self.count))

    def check(self) -> None:
        """Check the spec as far as possible without API requests. Raises NotConfigured."""
        check_name(self.name)
        self.tpu.check()
        if self.count < 1:
            raise NotConfigured(
                f"queued resource {self.where}: count is {self.count}, but must be at least 1"
            )
        check_name(self.nodes[-1])  # the number at its end may make it too long
        if self.valid_for and self.valid_until:
            raise NotConfigured(
                f"queued resource {self.where}: both valid_for and valid_until are set. Remove one "
                "of them"
            )
        if self.min_duration and self.tier != "guaranteed":
            raise NotConfigured(
                f"queued resource {self.where}: min_duration needs the tier guaranteed. Set tier: "
                "guaranteed, or remove min_duration"
            )

    def body(self, project: str) -> dict[str, Any]:
        """Return the JSON body of the creation request.

        ``node`` in the body has no ``schedulingConfig``, because the body has a field for the tier.
        """
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

    def compared_fields(self) -> dict[str, Any]:
        """Return the desired values, with the same keys as ``QueuedResource.compared_fields``."""
        return {
            "name": self.name,
            "zone": self.tpu.zone,
            "accelerator_type": self.tpu.kind,
            "runtime_version": self.tpu.runtime_version,
            "tier": self.tier,
            "nodes": list(self.nodes),
        }

    def differences(self, request: QueuedResource) -> list[str]:
        """Describe how a queued resource differs from this spec, one text for each field."""
        observed = request.compared_fields()
        return [
            f"{key} is {observed[key] or 'nothing'}, expected {desired or 'nothing'}"
            for key, desired in self.compared_fields().items()
            if observed[key] != desired
        ]


def parse_queued_resource(data: object) -> QueuedResource:
    """Parse a queued resource from the API's JSON. Raises BadAnswer."""
    _, zone, name = path_parts(data, "queuedResources", "queued resource")
    fields = Fields(data, f"queued resource {name} ({zone})")
    state = fields.nested("state")
    specs = fields.nested("tpu").nested_list("nodeSpec")
    node = specs[0].nested("node") if specs else Fields({}, fields.resource)
    config = node.nested("acceleratorConfig")
    tiers = [tier for tier in ("spot", "guaranteed") if tier in fields.data]
    return QueuedResource(
        zone=zone,
        name=name,
        state=state.identifier("state") or "UNKNOWN",
        error=one_line(state.nested("failedData").nested("error").text("message")),
        created=fields.text("createTime"),
        accelerator_type=node.identifier("acceleratorType")
        or type_of_config(config.identifier("type"), config.identifier("topology")),
        runtime_version=node.text("runtimeVersion"),
        tier=tiers[0] if tiers else "",
        nodes=tuple(node for spec in specs for node in _nodes_of(spec, name)),
        labels=node.text_map("labels"),
    )


def _nodes_of(spec: Fields, name: str) -> list[str]:
    slices = spec.nested("multisliceParams")
    count = slices.number("nodeCount")
    node = (slices.text("nodeIdPrefix") or name) if count else spec.text("nodeId")
    # Google accepts the same characters in names of TPUs and of queued resources.
    if node and not re.fullmatch(REQUEST_NAME_PATTERN, node):
        raise BadAnswer(f"{spec.resource}: malformed API response: invalid TPU name ({node!r:.80})")
    if count:
        return [f"{node}-{number}" for number in range(min(count, _MAX_SLICES))]
    return [node] if node else []
