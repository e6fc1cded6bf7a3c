"""Check of the watch: whether its passes end at regular times, and whether they succeed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...module_utils.schedule.run_schedule import LIMIT_SECONDS
from ...module_utils.worker.doctor_finding import Finding, ok, problem, unknown
from ..runs.status import age_text

if TYPE_CHECKING:
    from ..runs.watch_heartbeat import Heartbeat

CHECK = "watch"


def watch_finding(
    heartbeats: Sequence[Heartbeat],
    scheduled_on: str,
    interval_s: int,
    logs: str,
    now: float,
) -> Finding | None:
    """Check the watch; return None if it has no timer on this controller and has never run.

    Args:
        heartbeats: every controller's last pass, newest first.
        scheduled_on: the name of this controller if it has a timer for this inventory's watch,
            else empty.
        interval_s: the interval of that timer in seconds; 0 if it starts the watch at fixed times.
        logs: the command that shows the logs of the timer.
        now: unix seconds.
    """
    if not scheduled_on:
        if not heartbeats:
            return None
        last = heartbeats[0]
        age = age_text(now - last.ended_at)
        where = "not scheduled on this computer for this inventory"
        return ok(CHECK, f"{where}; last pass {age} ago on {last.controller}")
    own = [heartbeat for heartbeat in heartbeats if heartbeat.controller == scheduled_on]
    if not own:
        return unknown(CHECK, f"scheduled, but no pass has ended yet. Its log: {logs}")
    age_s = now - own[0].ended_at
    if interval_s and age_s > LIMIT_SECONDS + interval_s:
        message = f"scheduled, but no pass has ended for {age_text(age_s)}"
        return problem(CHECK, message, f"see its log: {logs}")
    if own[0].has_failed:
        error = own[0].error or "no reason given"
        message = f"the last pass failed {age_text(age_s)} ago ({error})"
        return problem(CHECK, message, f"see its log: {logs}")
    return ok(CHECK, f"last pass {age_text(age_s)} ago, took {own[0].duration_s:.0f} s")
