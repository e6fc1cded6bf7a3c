"""Slices of a multislice: TPUs that one queued resource created, and that run together.

Google names them ``<prefix>-0`` to ``<prefix>-<n-1>`` (NodeSpec.multisliceParams).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...module_utils.cloud.nodes import Node

_NUMBERED = re.compile(r"(.*)-(0|[1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Slice:
    """The position of a TPU in its multislice. A TPU outside a multislice is slice 0 of 1.

    Args:
        multislice: the queued resource that created all slices; empty outside a multislice.
        group: the inventory group of all workers of the multislice; empty outside a multislice.
        id: the number of the slice, from 0.
        count: the number of slices.
        leader_ip: the internal address of worker 0 of slice 0; empty if it has none yet.
    """

    multislice: str = ""
    group: str = ""
    id: int = 0
    count: int = 1
    leader_ip: str = ""


def slices_of(nodes: Iterable[Node]) -> dict[str, Slice]:
    """Return the slice of each TPU, by Node.key.

    If the TPU of one slice is missing, the ids of the other slices stay the same, provided that the
    TPUs have numbered names.
    """
    slices: dict[str, Slice] = {}
    multislices: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in nodes:
        if node.multislice and node.queued_resource:
            multislices[node.zone, node.queued_resource].append(node)
        else:
            slices[node.key] = Slice(leader_ip=_leader_ip(node))
    names = Counter(name for _, name in multislices)
    for (zone, name), group_nodes in multislices.items():
        group = f"multislice_{name}" if names[name] == 1 else f"multislice_{name}_{zone}"
        by_number = _numbered(group_nodes)
        leader_ip = _leader_ip(by_number[0]) if 0 in by_number else ""
        for number, node in by_number.items():
            slices[node.key] = Slice(name, group, number, max(by_number) + 1, leader_ip)
    return slices


def run_tpu_names(host: Mapping[str, Any]) -> list[str]:
    """Return the names that a run record may have for the TPU of a host.

    These are the name of the TPU and, if it is a slice of a multislice, ``multislice_NAME``.
    ``host`` contains the inventory variables of the host.
    """
    names = [str(host.get("tpu_name") or "")]
    if host.get("tpu_multislice"):
        names.append(f"multislice_{host['tpu_multislice']}")
    return [name for name in names if name]


def _numbered(nodes: Sequence[Node]) -> Mapping[int, Node]:
    matches = [_NUMBERED.fullmatch(node.name) for node in nodes]
    if all(matches) and len({match[1] for match in matches if match}) == 1:
        return {int(match[2]): node for match, node in zip(matches, nodes, strict=True) if match}
    return dict(enumerate(sorted(nodes, key=lambda node: (node.name, node.zone, node.key))))


def _leader_ip(node: Node) -> str:
    return node.endpoints[0].internal_ip if node.endpoints else ""
