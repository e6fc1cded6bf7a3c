"""What create.yml would do, what is there and unwanted, and what holds quota for nothing. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from ...module_utils.cloud.quota_holders import Quota, mend_words
from ...module_utils.cloud.tpu_errors import NotConfigured
from ...module_utils.cloud.tpu_nodes import DEAD_STATES, Node
from ...module_utils.cloud.tpu_requests import Request
from ...module_utils.cloud.tpu_shapes import shape_of
from ...module_utils.cloud.tpu_wanted import Wanted, compare
from .fleet import FleetTpu
from .tpu_fleet import Survey, described
from .tpu_queued import described as described_request

#: From so many days before the grant's end on it is a warning.
WARN_DAYS = 7


@dataclass(frozen=True)
class Plan:
    """Entries a line each (``words``), and the chips by quota: generation, kind and zone."""

    missing: list[dict[str, Any]] = field(default_factory=list)
    disks: list[dict[str, Any]] = field(default_factory=list)
    different: list[dict[str, Any]] = field(default_factory=list)
    unwanted: list[dict[str, Any]] = field(default_factory=list)
    dead_requests: list[dict[str, Any]] = field(default_factory=list)
    waiting_requests: list[dict[str, Any]] = field(default_factory=list)
    chips: list[dict[str, Any]] = field(default_factory=list)
    days_left: int | None = None
    warnings: tuple[str, ...] = ()
    #: What is too late to be warned about, and stops nothing.
    errors: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Say it for people."""
        groups = (
            ("would be made", self.missing),
            ("would be made", self.disks),
            ("is there, but not as wanted", self.different),
            ("is there and not in the fleet", self.unwanted),
            ("holds quota for nothing", self.dead_requests),
            ("waits in the queue", self.waiting_requests),
        )
        for words, entries in groups:
            for entry in entries:
                yield f"{entry['words']} {words}{': ' + entry['why'] if entry.get('why') else ''}"
        for entry in self.chips:
            yield (
                f"chips {entry['quota']}: {entry['held']} held, {entry['wanted']} more wanted"
                + (f", {entry['dead']} held by dead requests" if entry["dead"] else "")
            )
        if not any(entries for _, entries in groups):
            yield "nothing to do: the fleet is as wanted"
        if self.days_left is not None:
            yield _grant_words(self.days_left)


def plan(
    fleet: Sequence[FleetTpu],
    seen: Survey,
    requests: Iterable[Request],
    *,
    disks: Sequence[dict[str, Any]] = (),
    grant_ends: date | None = None,
    today: date,
) -> Plan:
    """Compare the fleet with what is there. A TPU of several zones counts in its first.

    ``disks`` are those that would be made.
    """
    requests = list(requests)
    nodes = [*seen.present.values(), *seen.unwanted]
    missing: list[tuple[Wanted, dict[str, Any]]] = []
    different: list[dict[str, Any]] = []
    for tpu in fleet:
        node = seen.present.get(tpu.name)
        if node is None or node.state in DEAD_STATES:
            missing.append((tpu.choices[0], _missing(tpu, node)))
            continue
        choice = next(choice for choice in tpu.choices if choice.zone == node.zone)
        why = "; ".join(compare(choice, node).immutable)
        if why:
            different.append(described(node) | {"why": why})
    there = {(node.zone, node.name) for node in nodes if node.state not in DEAD_STATES}
    idle = [
        request
        for request in requests
        if not any((request.zone, name) in there for name in request.nodes)
    ]
    dead = [request for request in idle if request.dead]
    days_left = (grant_ends - today).days if grant_ends else None
    return Plan(
        missing=[entry for _, entry in missing],
        disks=list(disks),
        different=different,
        unwanted=[described(node) for node in seen.unwanted],
        dead_requests=[
            described_request(request) | {"why": request.error, "mend": mend_words(request)}
            for request in dead
        ],
        waiting_requests=[described_request(each) for each in idle if not each.dead],
        chips=_chips(nodes, [choice for choice, _ in missing], dead),
        days_left=days_left,
        warnings=tuple(_warnings(dead, grant_ends, days_left)),
        errors=(f"{_grant_words(days_left)} ({grant_ends}): {_AFTER_IT}",)
        if days_left is not None and days_left < 0
        else (),
    )


_AFTER_IT = "what stands after it is paid for"


def _grant_words(days_left: int) -> str:
    days = f"{abs(days_left)} day{'' if abs(days_left) == 1 else 's'}"
    return f"the grant ends in {days}" if days_left >= 0 else f"the grant ended {days} ago"


def read_date(text: object) -> date | None:
    """Read ``grant_ends``, ``2026-12-31``; None if it is empty. Raises NotConfigured."""
    if text in (None, ""):
        return None
    try:
        return date.fromisoformat(str(text)[:10])
    except ValueError:
        raise NotConfigured(
            f"grant_ends is {text!r:.40}, wanted is a day such as 2026-12-31"
        ) from None


def _missing(tpu: FleetTpu, dead: Node | None) -> dict[str, Any]:
    choice = tpu.choices[0]
    shape = shape_of(choice.kind)
    kind = f"{choice.kind}{', spot' if choice.spot else ''}"
    zones = " or ".join(tpu.zones)
    return {
        "name": tpu.name,
        "zones": list(tpu.zones),
        "accelerator_type": choice.kind,
        "spot": choice.spot,
        "workers": shape.workers if shape else 0,
        "chips": shape.chips if shape else 0,
        "words": f"TPU {tpu.name} ({zones}, {kind}, {shape.chips if shape else '?'} chips)",
        "why": f"the one that is there is {dead.state}" if dead else "",
    }


def _chips(
    nodes: Iterable[Node], missing: Iterable[Wanted], dead: Iterable[Request]
) -> list[dict[str, Any]]:
    counts: dict[str, dict[str, int]] = defaultdict(lambda: {"held": 0, "wanted": 0, "dead": 0})
    for node in nodes:
        # A TPU that was preempted is still there, but Google has its chips.
        if node.state not in DEAD_STATES:
            quota = _quota(node.accelerator_type, node.spot or node.preemptible, node.zone)
            counts[quota]["held"] += _chips_of(node.accelerator_type)
    for choice in missing:
        quota = _quota(choice.kind, choice.spot or choice.preemptible, choice.zone)
        counts[quota]["wanted"] += _chips_of(choice.kind)
    for request in dead:
        quota = _quota(request.accelerator_type, request.tier == "spot", request.zone)
        counts[quota]["dead"] += request.chips
    return [{"quota": quota, **count} for quota, count in sorted(counts.items())]


def _quota(kind: str, spot: bool, zone: str) -> str:
    return Quota.of(kind, spot, zone).words


def _chips_of(kind: str) -> int:
    shape = shape_of(kind)
    return shape.chips if shape else 0


def _warnings(dead: Sequence[Request], ends: date | None, days_left: int | None) -> Iterator[str]:
    for request in dead:
        yield (
            f"queued resource {request.where} is {request.state} and holds the quota of "
            f"{request.chips} chips: {mend_words(request)}"
        )
    if days_left is not None and 0 <= days_left <= WARN_DAYS:
        yield f"{_grant_words(days_left)} ({ends}): {_AFTER_IT}"
