"""Goodput of a run: the share of its wanted time that it spent in steps that counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def goodput(told: Mapping[str, Any] | None, record: Mapping[str, Any], now: float) -> float | None:
    """Return the share of its wanted time that a run spent in steps that counted, at most 1.

    ``told`` is ``progress`` of the worker that writes metrics (worker/run_progress.py). Earlier
    steps, made on a TPU that is lost, are assumed to have been as fast. ``now`` is when the run
    ended, if it is done. Returns None if nothing is known.
    """
    wall = wanted_seconds(record, now)
    if not told or not wall:
        return None
    pace = told["counted"] / (told["last"] - told["first"])
    return min(1.0, (told["counted"] + pace * max(0, told["first"] - 1)) / wall)


def wanted_seconds(record: Mapping[str, Any], now: float) -> float | None:
    """Return for how many seconds a run was wanted until ``now``; None if its record has none."""
    spent = record.get("wanted_seconds")
    if not isinstance(spent, (int, float)):
        return None
    if record.get("wanted") == "running":
        return spent + max(0.0, now - float(record.get("wanted_since", now)))
    late = float(record.get("wanted_until", now)) - now if record.get("wanted") == "done" else 0.0
    return spent - max(0.0, late)  # the end of a run may be recorded long after it


def wanted_time(
    before: Mapping[str, Any], fields: Mapping[str, Any], now: float
) -> dict[str, float]:
    """Return the fields that count for how long a run was wanted, after a change of its record."""
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
