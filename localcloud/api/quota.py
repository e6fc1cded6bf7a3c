"""Quota on TPU chips: checks new requests against the limits set by faults of the kind ``quota``.

A queued resource counts against the quota until it is deleted, whatever its state. A node without a
queued resource counts until its machines are deleted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localcloud.api import catalog
from localcloud.api.database import Database
from localcloud.api.errors import quota_exceeded
from localcloud.api.fault_message import Fault
from localcloud.api.faults import Faults
from localcloud.api.node_message import NodeRequest, is_spot
from localcloud.api.node_table import NodeTable
from localcloud.api.queued_resource_message import wanted_nodes
from localcloud.api.queued_resource_table import QueuedResourceTable


@dataclass(frozen=True)
class _Usage:
    """A number of chips, in use or requested, in one zone, TPU generation and tier."""

    zone: str
    generation: str
    spot: bool
    chips: int

    def counts_for(self, limit: Fault) -> bool:
        tier = "spot" if self.spot else "on-demand"
        return (
            limit.zone in ("", self.zone)
            and limit.details["generation"] in ("", self.generation)
            and limit.details["tier"] in ("", tier)
        )


class Quota:
    """Quota checks for requested nodes."""

    def __init__(self, database: Database, faults: Faults) -> None:
        self._nodes = NodeTable(database)
        self._requests = QueuedResourceTable(database)
        self._faults = faults

    def check(self, zone: str, wanted: Sequence[NodeRequest]) -> None:
        """Raise HTTP 429 that names the quota if the nodes in ``wanted`` would exceed it."""
        limits = self._faults.quotas()
        if not limits:
            return
        asked = [_usage(zone, it.accelerator.name, it.spot) for it in wanted]
        used = list(self._in_use())
        for limit in limits:
            mine = sum(it.chips for it in asked if it.counts_for(limit))
            theirs = sum(it.chips for it in used if it.counts_for(limit))
            if mine and mine + theirs > limit.details["chips"]:
                name = _name(limit)
                place = f"zone {limit.zone}" if limit.zone else "project"
                raise quota_exceeded(
                    name,
                    catalog.PARENT,
                    f"Quota limit '{name}' has been exceeded. Limit: {limit.details['chips']} in "
                    f"{place}: {mine} chips are requested, {theirs} are in use.",
                )

    def _in_use(self) -> Iterator[_Usage]:
        for node in self._nodes.everything():
            if node.queued_resource is None and node.workers:
                yield _usage(node.zone, node.body["acceleratorType"], is_spot(node.body))
        for request in self._requests.everything():
            for node in wanted_nodes(request.body, request.zone, request.request_name):
                name = node.request.accelerator.name
                yield _usage(request.zone, name, node.request.spot)


def _usage(zone: str, name: str, spot: bool) -> _Usage:
    generation = name.partition("-")[0]
    return _Usage(zone, generation, spot, catalog.ACCELERATORS[name].chips)


def _name(limit: Fault) -> str:
    """Return the name of a quota in Google's style, such as ``TPUV4PerProjectPerZoneForTPUAPI``."""
    generation = limit.details["generation"].upper()
    tier = "Preemptible" if limit.details["tier"] == "spot" else ""
    scope = "PerProjectPerZone" if limit.zone else "PerProject"
    return f"TPU{generation}{tier}{scope}ForTPUAPI"
