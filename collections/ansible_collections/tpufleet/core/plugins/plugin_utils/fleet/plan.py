"""Plan of a fleet: the differences between the fleet file and what exists, and quota in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud.errors import NotConfigured
from ...module_utils.cloud.node_diff import compare
from ...module_utils.cloud.quota import Quota, deletion_command, without_nodes
from ...module_utils.cloud.shapes import chips_of, shape_of
from .observed import Observed, node_description, request_description

if TYPE_CHECKING:
    from ...module_utils.cloud.node_spec import NodeSpec
    from ...module_utils.cloud.nodes import Node
    from ...module_utils.cloud.queued_resource import QueuedResource
    from .spec import FleetEntry

#: A plan warns if the TPU grant ends within this many days.
WARN_DAYS = 7


@dataclass(frozen=True)
class Plan:
    """Differences between the fleet file and what exists.

    In the lists from ``missing`` to ``waiting_requests``, each entry has a ``description``: a text
    about the TPU, disk or queued resource.

    Args:
        missing: TPUs to create.
        disks: disks to create.
        different: existing TPUs of the fleet file that differ from it in an immutable field, or
            that do not belong to this fleet.
        unwanted: existing TPUs of this fleet that are not in the fleet file.
        foreign: existing TPUs that neither belong to this fleet nor are in the fleet file.
        dead_requests: failed or suspended queued resources, which still hold quota.
        waiting_requests: other queued resources without TPUs.
        chips: for each quota, the chips that TPUs and ``waiting_requests`` hold, that ``missing``
            TPUs need in addition, and that ``dead_requests`` hold.
        days_left: days until the TPU grant ends, negative after its end; None if it has no end.
        warnings: about ``dead_requests``, and a grant that ends soon.
        errors: a message if the grant has ended; the playbook continues.
    """

    missing: list[dict[str, Any]]
    disks: list[dict[str, Any]]
    different: list[dict[str, Any]]
    unwanted: list[dict[str, Any]]
    foreign: list[dict[str, Any]]
    dead_requests: list[dict[str, Any]]
    waiting_requests: list[dict[str, Any]]
    chips: list[dict[str, Any]]
    days_left: int | None
    warnings: tuple[str, ...]
    errors: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield the plan as lines of text."""
        groups = (
            ("would be created", self.missing),
            ("would be created", self.disks),
            ("exists but differs", self.different),
            ("exists and is not in the fleet", self.unwanted),
            ("has no TPU any more but still holds quota", self.dead_requests),
            ("is waiting in the queue", self.waiting_requests),
        )
        for state, entries in (*groups, ("is foreign", self.foreign)):
            for entry in entries:
                yield (
                    f"{entry['description']} {state}"
                    f"{': ' + entry['why'] if entry.get('why') else ''}"
                )
        for entry in self.chips:
            yield (
                f"chips {entry['quota']}: {entry['held']} held, {entry['wanted']} more wanted"
                + (
                    f", {entry['dead']} held by failed or suspended queued resources"
                    if entry["dead"]
                    else ""
                )
            )
        if not any(entries for _, entries in groups):
            yield "nothing to do: the fleet is as desired"
        if self.days_left is not None:
            yield _grant_line(self.days_left)


def make_plan(
    fleet: Sequence[FleetEntry],
    observed: Observed,
    requests: Iterable[QueuedResource],
    *,
    foreign_text: Callable[[Node], str] = lambda _node: "",
    disks: Sequence[dict[str, Any]] = (),
    grant_ends: date | None = None,
    today: date,
) -> Plan:
    """Return the plan of a fleet. A missing TPU counts for the quota of its first zone.

    Args:
        fleet: the TPUs of the fleet file.
        observed: the existing TPUs, matched with the fleet file.
        requests: the existing queued resources.
        foreign_text: returns why a TPU does not belong to this fleet; empty if it does.
        disks: the disks that would be created.
        grant_ends: the last day of the TPU grant; None if it has no end.
        today: the date from which the days of the grant are counted.
    """
    nodes = [*observed.present.values(), *observed.unwanted]
    missing: list[NodeSpec] = []
    missing_entries: list[dict[str, Any]] = []
    different: list[dict[str, Any]] = []
    for tpu in fleet:
        node = observed.present.get(tpu.name)
        # create.yml replaces a lost TPU only if it belongs to this fleet.
        why = foreign_text(node) if node else ""
        if node is None or node.is_being_deleted or (node.is_lost and not why):
            missing.append(tpu.specs[0])
            missing_entries.append(_missing(tpu, node))
            continue
        differences = compare(tpu.spec_in(node.zone), node).immutable
        if why := "; ".join(filter(None, [why, *differences])):
            different.append(node_description(node) | {"why": why})
    unfulfilled = without_nodes(requests, (node for node in nodes if not node.is_lost))
    dead = [request for request in unfulfilled if request.is_dead]
    days_left = (grant_ends - today).days if grant_ends else None
    return Plan(
        missing=missing_entries,
        disks=list(disks),
        different=different,
        unwanted=[
            observed.unwanted_description(node)
            for node in observed.unwanted
            if not foreign_text(node)
        ],
        foreign=[
            node_description(node) | {"why": why}
            for node in observed.unwanted
            if (why := foreign_text(node))
        ],
        dead_requests=[
            request_description(request) | {"why": request.error, "fix": deletion_command(request)}
            for request in dead
        ],
        waiting_requests=[
            request_description(request) for request in unfulfilled if not request.is_dead
        ],
        chips=_chips(nodes, missing, unfulfilled),
        days_left=days_left,
        warnings=tuple(_warnings(dead, grant_ends, days_left)),
        errors=(f"{_grant_line(days_left)} ({grant_ends}): {_AFTER_GRANT}",)
        if days_left is not None and days_left < 0
        else (),
    )


_AFTER_GRANT = "TPUs that exist after it cost money"


def _grant_line(days_left: int) -> str:
    days = f"{abs(days_left)} day{'' if abs(days_left) == 1 else 's'}"
    return f"the grant ends in {days}" if days_left >= 0 else f"the grant ended {days} ago"


def parse_date(text: object) -> date | None:
    """Parse ``grant_ends``, such as ``2026-12-31``; None if empty. Raises NotConfigured."""
    if text in (None, ""):
        return None
    try:
        return date.fromisoformat(str(text)[:10])
    except ValueError:
        raise NotConfigured(
            f"grant_ends: expected a date such as 2026-12-31 ({text!r:.40})"
        ) from None


def _missing(tpu: FleetEntry, old: Node | None) -> dict[str, Any]:
    spec = tpu.specs[0]
    shape = shape_of(spec.kind)
    kind = f"{spec.kind}{', spot' if spec.spot else ''}"
    zones = " or ".join(tpu.zones)
    return {
        "name": tpu.name,
        "description": f"TPU {tpu.name} ({zones}, {kind}, {shape.chips if shape else '?'} chips)",
        "why": f"the existing one is {old.state}" if old else "",
    }


def _chips(
    nodes: Iterable[Node], missing: Iterable[NodeSpec], requests: Sequence[QueuedResource]
) -> list[dict[str, Any]]:
    """Return the chips of each quota. ``requests`` are the queued resources without a TPU."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: {"held": 0, "wanted": 0, "dead": 0})
    for node in nodes:
        # A preempted TPU is still listed, but holds no chips.
        if not node.is_lost:
            counts[str(Quota.of(node))]["held"] += chips_of(node.accelerator_type)
    for request in requests:
        counts[str(Quota.of(request))]["dead" if request.is_dead else "held"] += request.chips
    requested = {
        (request.zone, name)
        for request in requests
        if not request.is_dead
        for name in request.nodes
    }
    for spec in missing:
        # The chips of a TPU that waits in the queue are held already.
        needed = 0 if (spec.zone, spec.name) in requested else chips_of(spec.kind)
        counts[str(Quota.of(spec))]["wanted"] += needed
    return [{"quota": quota, **count} for quota, count in sorted(counts.items())]


def _warnings(
    dead: Sequence[QueuedResource], ends: date | None, days_left: int | None
) -> Iterator[str]:
    for request in dead:
        yield (
            f"queued resource {request.where} is {request.state} and holds the quota of "
            f"{request.chips} chips: {deletion_command(request)}"
        )
    if days_left is not None and 0 <= days_left <= WARN_DAYS:
        yield f"{_grant_line(days_left)} ({ends}): {_AFTER_GRANT}"
