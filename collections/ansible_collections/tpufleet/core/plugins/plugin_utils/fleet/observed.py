"""Matching of existing TPUs with the fleet file; lookup of TPUs and queued resources by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud.closest_names import closest_names
from ...module_utils.cloud.errors import NotConfigured
from ...module_utils.cloud.names import includes_zone
from ...module_utils.cloud.quota import without_nodes

if TYPE_CHECKING:
    from ...module_utils.cloud.nodes import Node
    from ...module_utils.cloud.queued_resource import QueuedResource
    from .spec import FleetEntry


@dataclass(frozen=True)
class Observed:
    """The existing TPUs, matched with the fleet file.

    ``present`` contains the existing TPUs of the fleet file, by name. ``unwanted`` contains all
    other existing TPUs.
    """

    present: Mapping[str, Node]
    unwanted: tuple[Node, ...]

    def unwanted_description(self, node: Node) -> dict[str, Any]:
        """Return the description of a TPU of ``unwanted``.

        ``why`` is empty unless the fleet uses another TPU of the same name.
        """
        used = self.present.get(node.name)
        why = f"the fleet uses the TPU {node.name} in {used.zone}" if used else ""
        return node_description(node) | {"why": why}


def match(
    fleet: Sequence[FleetEntry],
    nodes: Iterable[Node],
    zones: Sequence[str],
    is_own: Callable[[Node], bool] = lambda _node: True,
) -> Observed:
    """Match each TPU of the fleet file with an existing TPU of its name in one of its zones.

    If several match, TPUs that belong to this fleet (``is_own``) take precedence, then TPUs that
    are neither being deleted nor lost, then the order of the zones in the fleet file. ``zones`` are
    those that the inventory lists (``-``: all). Raises NotConfigured if the fleet file has a zone
    that the inventory does not list.
    """
    for tpu in fleet:
        unlisted = [zone for zone in tpu.zones if not includes_zone(zones, zone)]
        if unlisted:
            raise NotConfigured(
                f"tpu_fleet, {tpu.name}: the inventory does not list the zone {unlisted[0]}, "
                f"only {', '.join(zones)}. Add the zone to zones in tpu.yml"
            )
    nodes = list(nodes)
    present: dict[str, Node] = {}
    for tpu in fleet:
        candidates = [node for node in nodes if node.name == tpu.name and node.zone in tpu.zones]
        candidates.sort(
            key=lambda node: (
                not is_own(node),
                node.is_being_deleted,
                node.is_lost,
                tpu.zones.index(node.zone),
            )
        )
        if candidates:
            present[tpu.name] = candidates[0]
    matched = {(node.zone, node.name) for node in present.values()}
    return Observed(present, tuple(node for node in nodes if (node.zone, node.name) not in matched))


def find(
    nodes: Iterable[Node],
    name: str,
    zone: str = "",
    *,
    requests: Sequence[QueuedResource] = (),
    known: bool = False,
) -> list[Node]:
    """Return the TPU of this name in the zone, as a list of one TPU or none.

    An empty zone means any zone. ``requests`` are the queued resources of this name that have no
    TPU. ``known`` says whether the name is in the fleet file. Raises NotConfigured if several zones
    have a TPU or queued resource of this name, or if the name is unknown: no TPU, no queued
    resource and no entry of the fleet file has it.
    """
    nodes = list(nodes)
    matches = [node for node in nodes if node.name == name and zone in ("", node.zone)]
    if not matches and not requests and not known:
        where = f"in zone {zone}" if zone else "in the zones of the inventory"
        existing = closest_names(name, (node.where for node in nodes))
        raise NotConfigured(f"there is no TPU {name!r} {where}. Existing TPUs: {existing}")
    zones = sorted({resource.zone for resource in (*matches, *requests)})
    if len(zones) > 1:
        raise NotConfigured(
            f"several zones have a TPU or queued resource {name} ({', '.join(zones)}). Name one: "
            "-e zone=ZONE"
        )
    return matches


def waiting_requests(
    requests: Iterable[QueuedResource],
    nodes: Iterable[Node],
    names: Collection[tuple[str, str]],
) -> list[QueuedResource]:
    """Return the queued resources with these names that have no TPU.

    They may create a TPU later, or only hold quota. ``names`` contains pairs of a name and a zone;
    an empty zone means any zone.
    """
    return [
        request
        for request in without_nodes(requests, nodes)
        if (request.name, request.zone) in names or (request.name, "") in names
    ]


def node_description(node: Node) -> dict[str, Any]:
    """Return a TPU's name, zone, id and description, for plans and prompts before deletions."""
    kind = f"{node.accelerator_type}{', spot' if node.spot else ''}"
    workers = f"{len(node.endpoints)} worker{'' if len(node.endpoints) == 1 else 's'}"
    description = f"TPU {node.name} ({node.zone}, {kind}, {node.state}, {workers})"
    return {"name": node.name, "zone": node.zone, "id": node.key, "description": description}


def request_description(request: QueuedResource) -> dict[str, Any]:
    """Return what plans and confirmation prompts for deletions show about a queued resource."""
    kind = f"{request.accelerator_type}{', spot' if request.is_preemptible else ''}"
    description = f"queued resource {request.name} ({request.zone}, {kind}, {request.state})"
    return {
        "name": request.name,
        "zone": request.zone,
        "id": request.key,
        "description": description,
    }
