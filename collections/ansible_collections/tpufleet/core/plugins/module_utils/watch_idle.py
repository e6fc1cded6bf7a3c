"""Which TPUs have had no run for so long that the fleet wants them deleted, and which kept releases
no run needs. Pure; times are unix seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .watch_decision import READY

KEPT_RELEASES = 5
"""How many releases that no record names stay on the controller, the newest ones."""
YOUNG_SECONDS = 86400
"""A release this young may be of a launch that has not written its record yet."""


def in_use(
    tpu: str,
    hosts: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
    records: Iterable[Mapping[str, Any]],
) -> bool:
    """Tell whether a TPU has a run, is to have one, or may have one.

    A worker that gives no answer may; so may a TPU of which not every worker is listed.
    """
    mine = {host: found for host, found in hosts.items() if found.get("tpu_name") == tpu}
    if any(each.get("tpu") == tpu and each.get("wanted") == "running" for each in records):
        return True
    if any(found.get("tpu_state", READY) != READY for found in mine.values()):
        return True
    wanted = max((int(found.get("tpu_worker_count", 1)) for found in mine.values()), default=1)
    if len(mine) < wanted:
        return True
    for host in mine:
        if "runs" not in answers.get(host, {}):
            return True
        if any(each["active"] for each in answers[host]["runs"]):
            return True
    return False


def idle_since(memory: Mapping[str, Any], node_id: str, used: bool, now: float) -> float:
    """Give since when a TPU is idle, 0 while it is in use. ``memory`` is of the pass before.

    A TPU of another id under the same name begins anew.
    """
    if used:
        return 0.0
    since = memory.get("since")
    same = memory.get("id") == node_id and isinstance(since, (int, float)) and since > 0
    return float(since) if same and since <= now else now


def superfluous(
    kept: Mapping[str, float], records: Iterable[Mapping[str, Any]], now: float
) -> list[str]:
    """Name the kept releases that may go; ``kept`` has the time of each.

    A release that a record names stays, as long as its run is not done.
    """
    needed = {str(each.get("release")) for each in records if each.get("wanted") != "done"}
    free = sorted((name for name in kept if name not in needed), key=lambda name: -kept[name])
    return sorted(name for name in free[KEPT_RELEASES:] if now - kept[name] > YOUNG_SECONDS)
