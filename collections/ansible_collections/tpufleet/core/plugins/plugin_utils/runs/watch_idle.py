"""Which TPUs have been idle for so long that the fleet wants them deleted, and which cached
releases no run needs. Pure; times are unix seconds; controller only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .observation import READY, ObservedTpu

if TYPE_CHECKING:
    from .record import RunRecord

KEPT_RELEASES = 5
"""How many releases that no record names stay on the controller, the newest ones."""
YOUNG_SECONDS = 86400
"""A release this young may belong to a launch that has not written its record yet."""


def in_use(
    tpu: ObservedTpu,
    hosts: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
    records: Iterable[RunRecord],
) -> bool:
    """Return whether a TPU is used, is to be used, or may be used.

    It is used by a run, and by any other process that has its device open. A worker that does not
    say both may be used, and so may a TPU of which not every worker is listed.
    """
    if any(each.wanted == "running" and is_on(each, tpu) for each in records):
        return True
    mine = [
        host
        for host, facts in hosts.items()
        if (facts.get("tpu_zone"), facts.get("tpu_id")) == (tpu.zone, tpu.id)
    ]
    if tpu.state != READY or len(mine) < tpu.workers:
        return True
    return any(is_busy(answers.get(host) or {}) for host in mine)


def is_on(record: RunRecord, tpu: ObservedTpu) -> bool:
    """Return whether a run may be on a TPU: by its identity, or by its name."""
    names = {record.launch.tpu, *(node.name for node in record.launch.nodes)}
    return tpu.name in names or any(
        (node.zone, node.id) == (tpu.zone, tpu.id) for node in record.launch.nodes
    )


def is_busy(answer: Mapping[str, Any]) -> bool:
    """Return whether a worker is used, by its answer, or does not say."""
    runs, holders = answer.get("runs"), answer.get("holders")
    if not isinstance(runs, list) or not isinstance(holders, list):
        return True
    return bool(holders) or any(each["active"] for each in runs)


def idle_since(memory: Mapping[str, Any], node_id: str, used: bool, now: float) -> float:
    """Return since when a TPU is idle, 0 while it is in use. ``memory`` is of the pass before.

    For a TPU with another id under the same name the time begins again.
    """
    if used:
        return 0.0
    since = memory.get("since")
    same = memory.get("id") == node_id and isinstance(since, (int, float)) and since > 0
    return float(since) if same and since <= now else now


def superfluous(kept: Mapping[str, float], records: Iterable[RunRecord], now: float) -> list[str]:
    """Name the cached releases that may go; ``kept`` has the time of each.

    A release that a record names stays until its run is done.
    """
    needed = {each.launch.release for each in records if each.wanted != "done"}
    free = sorted((name for name in kept if name not in needed), key=lambda name: -kept[name])
    return sorted(name for name in free[KEPT_RELEASES:] if now - kept[name] > YOUNG_SECONDS)
