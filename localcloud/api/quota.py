"""Quota on TPU chips: checks new requests against the limits set by faults of the kind ``quota``.

A queued resource counts against the quota until it is deleted, whatever its state. A node without a
queued resource counts until its machines are deleted.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from localcloud.api.catalog import PARENT
from localcloud.api.database import Database
from localcloud.api.errors import quota_exceeded
from localcloud.api.fault_message import Fault
from localcloud.api.faults import Faults
from localcloud.api.node_message import accelerator_of, is_spot
from localcloud.api.node_table import NodeTable
from localcloud.api.queued_resource_message import requested_nodes
from localcloud.api.queued_resource_table import QueuedResourceTable


class Quota:
    """Quota checks for requested nodes."""

    def __init__(self, database: Database, faults: Faults) -> None:
        self._nodes = NodeTable(database)
        self._requests = QueuedResourceTable(database)
        self._faults = faults

    def check(self, zone: str, bodies: Sequence[Mapping[str, Any]]) -> None:
        """Raise HTTP 429 that names the quota if nodes with these bodies would exceed it."""
        limits = self._faults.quotas()
        if not limits:
            return
        used_nodes = list(self._in_use())
        for limit in limits:
            requested_chips = sum(_chips(limit, zone, body) for body in bodies)
            used_chips = sum(_chips(limit, *node) for node in used_nodes)
            if requested_chips and requested_chips + used_chips > limit.details["chips"]:
                name = _name(limit)
                scope = f"zone {limit.zone}" if limit.zone else "project"
                raise quota_exceeded(
                    name,
                    PARENT,
                    f"Quota limit '{name}' has been exceeded. Limit: {limit.details['chips']} in "
                    f"{scope}: {requested_chips} chips are requested, {used_chips} are in use.",
                )

    def _in_use(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the zone and body of each node that counts against the quota, created or not."""
        for node in self._nodes.all():
            if node.queued_resource is None and node.workers:
                yield node.zone, node.body
        for request in self._requests.all():
            for _, body in requested_nodes(request.body, request.zone, request.request_name):
                yield request.zone, body


def _chips(limit: Fault, zone: str, body: Mapping[str, Any]) -> int:
    """Return the number of a node's chips if the limit applies to the node, else 0."""
    accelerator = accelerator_of(body)
    is_counted = (
        limit.zone in ("", zone)
        and limit.details["generation"] in ("", accelerator.name.partition("-")[0])
        and limit.details["tier"] in ("", "spot" if is_spot(body) else "on-demand")
    )
    return accelerator.chips if is_counted else 0


def _name(limit: Fault) -> str:
    """Return the name of a quota in Google's style, such as ``TPUV4PerProjectPerZoneForTPUAPI``."""
    generation = limit.details["generation"].upper()
    tier = "Preemptible" if limit.details["tier"] == "spot" else ""
    scope = "PerProjectPerZone" if limit.zone else "PerProject"
    return f"TPU{generation}{tier}{scope}ForTPUAPI"
