"""Goodput: the share of the time in which a run was wanted that it spent in steps that counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def goodput(told: Mapping[str, Any] | None, record: Mapping[str, Any], now: float) -> float | None:
    """Return the goodput of a run, at most 1; None if it is unknown.

    ``told`` is the ``progress`` of the worker that writes metrics (worker/run_progress.py). Steps
    before the first one in the metrics ran on a TPU that is lost; they are assumed to have been as
    fast. ``now`` is in unix seconds; for a run that is done, the time at which it ended.
    """
    wall = wanted_seconds(record, now)
    if not told or not wall:
        return None
    pace = told["counted"] / (told["last"] - told["first"])
    return min(1.0, (told["counted"] + pace * max(0, told["first"] - 1)) / wall)


def wanted_seconds(record: Mapping[str, Any], now: float) -> float | None:
    """Return the seconds until ``now`` in which the run was to train; None if none are recorded."""
    spent = record.get("wanted_seconds")
    if not isinstance(spent, (int, float)):
        return None
    if record.get("wanted") == "running":
        return spent + max(0.0, now - float(record.get("wanted_since", now)))
    late = float(record.get("wanted_until", now)) - now if record.get("wanted") == "done" else 0.0
    return spent - max(0.0, late)  # DONE may be recorded long after the run ended


def wanted_time(
    before: Mapping[str, Any], fields: Mapping[str, Any], now: float
) -> dict[str, float]:
    """Return the record fields that count the wanted time, updated for a change of the record.

    ``before`` is the record before the change (empty for a new run), ``fields`` are the changes.
    """
    was = before.get("wanted") == "running"
    is_to = fields.get("wanted", before.get("wanted")) == "running"
    if is_to and not before:
        return {"wanted_seconds": 0.0, "wanted_since": now}
    if "wanted_seconds" not in before or was == is_to:
        return {}
    if is_to:
        return {"wanted_since": now}
    spent = before["wanted_seconds"] + max(0.0, now - before.get("wanted_since", now))
    return {"wanted_seconds": round(spent, 3), "wanted_until": now}
