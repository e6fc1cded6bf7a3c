"""Quota of TPU chips: which quota is used up, and which resources hold it.

TPUs hold quota unless they are preempted, and queued resources until they are deleted. Each zone
has one quota for each TPU generation and kind (preemptible or on demand).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import errors
from .shapes import chips_of, generation_of

if TYPE_CHECKING:
    from .node_spec import NodeSpec
    from .nodes import Node
    from .queued_resource import QueuedResource


@dataclass(frozen=True)
class Quota:
    """A quota of one zone, for chips of one generation, either preemptible or on demand."""

    generation: str
    preemptible: bool
    zone: str

    @classmethod
    def of(cls, resource: NodeSpec | Node | QueuedResource) -> Quota:
        """Return the quota that a TPU or a queued resource holds or needs."""
        # A NodeSpec with a topology has no accelerator type. Its ``kind`` is the type that matches
        # the topology.
        kind = getattr(resource, "kind", resource.accelerator_type)
        return cls(generation_of(kind), resource.is_preemptible, resource.zone)

    def __str__(self) -> str:
        """Format the quota for messages: ``v4 spot in us-central2-b``."""
        return f"{self.generation} {'spot' if self.preemptible else 'on demand'} in {self.zone}"


def deletion_command(request: QueuedResource) -> str:
    """Return the command that deletes a queued resource."""
    return f"ansible-playbook playbooks/delete.yml -e tpu={request.name} -e zone={request.zone}"


def without_nodes(
    requests: Iterable[QueuedResource], nodes: Iterable[Node]
) -> list[QueuedResource]:
    """Return the queued resources that have no TPU in ``nodes``.

    Such a queued resource still holds quota: it waits for its TPUs, has failed, or its TPUs were
    lost.
    """
    existing = {(node.zone, node.name) for node in nodes}
    return [
        request
        for request in requests
        if not any((request.zone, name) in existing for name in request.nodes)
    ]


def holders(quota: Quota, nodes: Iterable[Node], requests: Iterable[QueuedResource]) -> str:
    """Describe in one line the resources that hold a quota, failed queued resources first."""
    nodes = [node for node in nodes if not node.is_lost]
    waiting = [request for request in without_nodes(requests, nodes) if Quota.of(request) == quota]
    descriptions = [
        f"the dead queued resource {request.name} ({request.state}, {request.chips} chips: "
        f"{deletion_command(request)})"
        for request in waiting
        if request.is_dead
    ]
    descriptions += [
        f"TPU {node.name} ({chips_of(node.accelerator_type)} chips)"
        for node in nodes
        if Quota.of(node) == quota
    ]
    descriptions += [
        f"queued resource {request.name} ({request.state}, {request.chips} chips)"
        for request in waiting
        if not request.is_dead
    ]
    return (
        f"the quota for {quota} is held by {', '.join(descriptions)}"
        if descriptions
        else f"no TPU and no queued resource holds quota for {quota}"
    )


class QuotaExplainer:
    """Explanation of quota errors: names the resources that hold the quota. Thread-safe.

    Only the first error about a quota lists the resources; later errors refer to the first one.
    ``list_zone`` lists the TPUs and the queued resources of a zone. It raises CloudError.
    """

    def __init__(
        self, list_zone: Callable[[str], tuple[Iterable[Node], Iterable[QueuedResource]]]
    ) -> None:
        self._list_zone = list_zone
        self._lock = threading.Lock()
        self._explained: set[Quota] = set()

    def explain(self, error: errors.QuotaError, spec: NodeSpec) -> errors.QuotaError:
        """Return the quota error ``error`` with the resources that hold the quota added.

        An error about a quota that is not of chips is returned unchanged. ``spec`` is the TPU to
        create.
        """
        if not error.is_of_chips:
            return error
        quota = Quota.of(spec)
        with self._lock:
            if quota in self._explained:
                return errors.QuotaError(
                    f"{error}; the first error about {quota} lists what holds this quota"
                )
            self._explained.add(quota)
        return errors.QuotaError(f"{error}; {self._holders(quota)}")

    def _holders(self, quota: Quota) -> str:
        try:
            nodes, requests = self._list_zone(quota.zone)
        except errors.CloudError as error:
            return f"can't list what holds the quota for {quota} ({error})"
        return holders(quota, nodes, requests)
