"""Which TPUs are slices of one run: those that one queued resource made together (multislice).

Pure. Google's names are ``<prefix>-0`` to ``<prefix>-<n-1>`` (NodeSpec.multisliceParams).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils.cloud.tpu_nodes import Node

_NUMBERED = re.compile(r"(.*)-(0|[1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Slice:
    """A TPU's place among its kin. ``multislice`` is empty for a TPU of its own.

    ``leader_ip`` is the address of slice 0's leader inside the network, empty while it has none.
    """

    multislice: str = ""
    group: str = ""
    id: int = 0
    count: int = 1
    leader_ip: str = ""


def slices_of(nodes: Iterable[Node]) -> dict[str, Slice]:
    """Give each TPU's place, by Node.key. A slice that is missing keeps its number free."""
    places: dict[str, Slice] = {}
    together: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        if node.multislice and node.queued_resource:
            together[node.queued_resource].append(node)
        else:
            places[node.key] = Slice(leader_ip=_leader_ip(node))
    names = Counter(_short(resource) for resource in together)
    for resource, kin in together.items():
        name = _short(resource)
        group = f"multislice_{name}" if names[name] == 1 else f"multislice_{name}_{kin[0].zone}"
        by_number = _numbered(kin)
        leader_ip = _leader_ip(by_number[0]) if 0 in by_number else ""
        for number, node in by_number.items():
            places[node.key] = Slice(name, group, number, max(by_number) + 1, leader_ip)
    return places


def run_places(host: Mapping[str, Any]) -> list[str]:
    """Name what a run may be on, as its record says it, by a host's inventory variables: its TPU,
    and ``multislice_NAME`` where one queued resource made that together with others."""
    names = [str(host.get("tpu_name") or "")]
    if host.get("tpu_multislice"):
        names.append(f"multislice_{host['tpu_multislice']}")
    return [name for name in names if name]


def _numbered(kin: Sequence[Node]) -> Mapping[int, Node]:
    found = [_NUMBERED.fullmatch(node.name) for node in kin]
    if all(found) and len({match[1] for match in found if match}) == 1:
        return {int(match[2]): node for match, node in zip(found, kin, strict=True) if match}
    return dict(enumerate(sorted(kin, key=lambda node: (node.name, node.zone, node.key))))


def _short(resource: str) -> str:
    return resource.rsplit("/", 1)[-1]


def _leader_ip(node: Node) -> str:
    return node.endpoints[0].internal_ip if node.endpoints else ""
