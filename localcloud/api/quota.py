"""Quota: how many chips a project may hold at once, and what holds them.

A queued resource holds its chips until it is deleted, whatever became of it; a node of no queued
resource until its machines are gone. Limits are faults of the kind ``quota``; without one there
is no limit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localcloud.api import catalog
from localcloud.api.database import Database
from localcloud.api.errors import quota_exceeded
from localcloud.api.fault_message import Fault
from localcloud.api.faults import Faults
from localcloud.api.node_request import NodeRequest, is_spot
from localcloud.api.node_table import NodeTable
from localcloud.api.queued_resource_message import wanted_nodes
from localcloud.api.queued_resource_table import QueuedResourceTable


@dataclass(frozen=True)
class _Holding:
    """Chips that somebody holds or wants."""

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
    """Counts chips against the limits in force."""

    def __init__(self, database: Database, parent: str, faults: Faults) -> None:
        self._nodes = NodeTable(database)
        self._requests = QueuedResourceTable(database)
        self._parent = parent
        self._faults = faults

    def check(self, zone: str, wanted: Sequence[NodeRequest]) -> None:
        """Let nodes be asked for, or raise a 429 that names the quota and its limit."""
        limits = self._faults.quotas()
        if not limits:
            return
        asked = [_holding(zone, it.accelerator.name, it.spot) for it in wanted]
        held = list(self._held())
        for limit in limits:
            mine = sum(it.chips for it in asked if it.counts_for(limit))
            theirs = sum(it.chips for it in held if it.counts_for(limit))
            if mine and mine + theirs > limit.details["chips"]:
                name = _name(limit)
                place = f"zone {limit.zone}" if limit.zone else "project"
                raise quota_exceeded(
                    name,
                    self._parent,
                    f"Quota limit '{name}' has been exceeded. Limit: {limit.details['chips']} in "
                    f"{place}: {mine} chips are asked for, {theirs} are held.",
                )

    def _held(self) -> Iterator[_Holding]:
        for node in self._nodes.everything():
            if node.queued_resource is None and node.workers:
                yield _holding(node.zone, node.body["acceleratorType"], is_spot(node.body))
        for request in self._requests.everything():
            parts = (request.body, self._parent, request.zone, request.request_name)
            for node in wanted_nodes(*parts):
                name = node.request.accelerator.name
                yield _holding(request.zone, name, node.request.spot)


def _holding(zone: str, name: str, spot: bool) -> _Holding:
    generation = name.partition("-")[0]
    return _Holding(zone, generation, spot, catalog.ACCELERATORS[name].chips)


def _name(limit: Fault) -> str:
    """Give a quota's name in Google's manner."""
    generation = limit.details["generation"].upper()
    tier = "Preemptible" if limit.details["tier"] == "spot" else ""
    scope = "PerProjectPerZone" if limit.zone else "PerProject"
    return f"TPU{generation}{tier}{scope}ForTPUAPI"
