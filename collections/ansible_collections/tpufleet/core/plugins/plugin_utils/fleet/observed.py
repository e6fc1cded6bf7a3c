"""The observed fleet: which existing TPUs and queued resources are meant by which name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils.cloud.errors import NotConfigured
from ...module_utils.cloud.nodes import Node
from ...module_utils.cloud.queued_resource import QueuedResource, without_nodes
from .spec import FleetEntry

#: How many existing TPUs an error about an unknown name lists.
LISTED_NAMES = 8


@dataclass(frozen=True)
class Observed:
    """The fleet against what exists: its TPUs by name, and those that it does not name."""

    present: Mapping[str, Node]
    unwanted: tuple[Node, ...]


def match(
    fleet: Sequence[FleetEntry],
    nodes: Iterable[Node],
    zones: Sequence[str],
    is_own: Callable[[Node], bool] = lambda _node: True,
) -> Observed:
    """Find each TPU of the fleet among the nodes, in one of its zones.

    Of several with its name, the fleet's own comes before another's, then a living one first.
    """
    for tpu in fleet:
        unlisted = [zone for zone in tpu.zones if zone not in zones and "-" not in zones]
        if unlisted:
            raise NotConfigured(
                f"tpu_fleet, {tpu.name}: the inventory does not list the zone {unlisted[0]} "
                f"({', '.join(zones)}). Add it to zones in tpu.yml"
            )
    nodes = list(nodes)
    present: dict[str, Node] = {}
    for tpu in fleet:
        candidates = [node for node in nodes if node.name == tpu.name and node.zone in tpu.zones]
        candidates.sort(
            key=lambda node: (not is_own(node), node.is_lost, tpu.zones.index(node.zone))
        )
        if candidates:
            present[tpu.name] = candidates[0]
    matched = {(node.zone, node.name) for node in present.values()}
    return Observed(present, tuple(node for node in nodes if (node.zone, node.name) not in matched))


def find(nodes: Iterable[Node], name: str, zone: str = "", *, known: bool = False) -> list[Node]:
    """Find the one TPU of this name.

    Returns none for a ``known`` name. Raises NotConfigured for an unknown one, and for one that
    several zones have.
    """
    nodes = list(nodes)
    found = [node for node in nodes if node.name == name and zone in ("", node.zone)]
    if not found and not known:
        where = f"in zone {zone}" if zone else "in the listed zones"
        existing = sorted(node.where for node in nodes)
        more = f" and {len(existing) - LISTED_NAMES} more" if len(existing) > LISTED_NAMES else ""
        raise NotConfigured(
            f"there is no TPU {name!r} {where}; "
            + (
                f"there are {', '.join(existing[:LISTED_NAMES])}{more}"
                if existing
                else "none exist"
            )
        )
    if len(found) > 1:
        zones = ", ".join(sorted(node.zone for node in found))
        raise NotConfigured(f"several zones have a TPU {name} ({zones}). Name one: -e zone=ZONE")
    return found


def waiting_requests(
    requests: Iterable[QueuedResource],
    nodes: Iterable[Node],
    named: Collection[tuple[str, str]],
) -> list[QueuedResource]:
    """Return the named requests without a TPU, which would create one later or hold quota.

    ``named`` has names and zones; an empty zone means any.
    """
    return [
        request
        for request in without_nodes(requests, nodes)
        if (request.name, request.zone) in named or (request.name, "") in named
    ]


def described(node: Node) -> dict[str, Any]:
    """Return what a plan or the question before a deletion shows of a TPU."""
    kind = f"{node.accelerator_type}{', spot' if node.spot else ''}"
    workers = f"{len(node.endpoints)} worker{'' if len(node.endpoints) == 1 else 's'}"
    return {
        "name": node.name,
        "zone": node.zone,
        "accelerator_type": node.accelerator_type,
        "spot": node.spot,
        "id": node.key,
        "state": node.state,
        "workers": len(node.endpoints),
        "words": f"TPU {node.name} ({node.zone}, {kind}, {node.state}, {workers})",
    }


def described_request(request: QueuedResource) -> dict[str, Any]:
    """Return what a plan or the question before a deletion shows of a queued resource."""
    kind = f"{request.accelerator_type}{', spot' if request.is_preemptible else ''}"
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
