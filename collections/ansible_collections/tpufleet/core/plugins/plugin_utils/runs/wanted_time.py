"""How long a run was wanted (its desired state was running): in total, and in each phase.

A recovery has phases: waiting for capacity, boot, setup, launch. The record stores the total
seconds of each phase, because its history keeps only the last events.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from ...module_utils.worker.run_state import RunState
from .event_kind import RECREATIONS, Action, DesiredState, EventKind


class TimeUse(StrEnum):
    """What the wanted time of a run was spent on; the members are in the order of display."""

    TRAINING = "training"
    SAVES = "saves"
    """Training waited until a checkpoint was saved."""
    REDONE = "redone"
    """Steps that a later attempt repeated."""
    COMPILE = "compile"
    """From the start of the trainer to its first step, which includes restoring a checkpoint."""
    LAUNCH = "launch"
    """From the decision to launch to the start of the trainer, which includes the rendezvous."""
    SETUP = "setup"
    BOOT = "boot"
    CAPACITY = "capacity"
    """The TPU is lost: from the time when the watch notices it until a new TPU is being created."""
    OTHER = "other"
    """The rest: time until the end of an attempt is noticed, delays between tries, unknown time."""


PHASES = (TimeUse.LAUNCH, TimeUse.SETUP, TimeUse.BOOT, TimeUse.CAPACITY)
"""The phases of a recovery, whose seconds are in the field ``spent`` of the record."""
_ENDS_OF_LAUNCH = (EventKind.LAUNCHED, EventKind.LAUNCH_FAILED, EventKind.FOUND_RUNNING)


def wanted_seconds(record: Mapping[str, Any], now: float) -> float:
    """Return for how many seconds the run was wanted, up to ``now``."""
    spent = float(record.get("wanted_seconds", 0.0))
    if record.get("wanted") == DesiredState.RUNNING:
        return spent + max(0.0, now - float(record.get("wanted_since", now)))
    if record.get("wanted") != DesiredState.DONE:
        return spent
    # ``now`` may be the end of the run, which can be long before the run was recorded as done. The
    # time between does not count.
    return max(0.0, spent - max(0.0, float(record.get("wanted_until", now)) - now))


def phase_seconds(record: Mapping[str, Any], now: float, created: float = 0.0) -> dict[str, float]:
    """Return the seconds until ``now`` that the run spent in each phase while it was wanted.

    ``created`` is when the cloud began to create the current TPU, in unix seconds; 0 if unknown. A
    wait for a TPU counts as CAPACITY before this time, and as BOOT after it.
    """
    spent = {phase.value: float((record.get("spent") or {}).get(phase, 0.0)) for phase in PHASES}
    phase = record.get("phase")
    if phase in spent:
        since = float(record.get("phase_since", now))
        until = max(since, now)
        is_booting = created and phase == TimeUse.CAPACITY
        boot_began = min(max(since, created), until) if is_booting else until
        spent[phase] += boot_began - since
        spent[TimeUse.BOOT] += until - boot_began
    return {name: round(seconds, 3) for name, seconds in spent.items() if seconds}


def wanted_time(
    before: Mapping[str, Any], fields: Mapping[str, Any], event: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """Return the record fields that count the wanted time, updated for a change of the record.

    ``before`` is the record before the change (empty for a new run), ``fields`` contains the
    changed fields, ``event`` is added to the history. ``now`` is in unix seconds.
    """
    was_wanted = before.get("wanted") == DesiredState.RUNNING
    is_wanted = fields.get("wanted", before.get("wanted")) == DesiredState.RUNNING
    phases = _phase_fields(before, event, now, is_wanted)
    if was_wanted == is_wanted:
        return phases
    if is_wanted:
        return phases | {"wanted_since": now}
    return phases | {"wanted_seconds": round(wanted_seconds(before, now), 3), "wanted_until": now}


def _phase_fields(
    before: Mapping[str, Any], event: Mapping[str, Any], now: float, is_wanted: bool
) -> dict[str, Any]:
    phase = str(before.get("phase") or "")
    next_phase = _next_phase(phase, event) if is_wanted else ""
    if next_phase == phase:
        return {}
    created = float(event.get("created") or 0.0)
    spent = phase_seconds(before, now, created)
    return {"phase": str(next_phase), "phase_since": now, "spent": spent}


def _next_phase(phase: str, event: Mapping[str, Any]) -> str:
    """Return the phase of a run after an event; ``phase`` is the phase before the event.

    The result is one of PHASES, or empty from the end of a launch until the next phase begins.
    """
    kind, action = event.get("kind"), event.get("action")
    if kind == EventKind.SETUP_STARTED:
        return TimeUse.SETUP
    if kind in (EventKind.SETUP_DONE, EventKind.RESTARTED):
        return TimeUse.LAUNCH
    if kind in _ENDS_OF_LAUNCH:
        return ""
    if kind == EventKind.WATCH and (
        event.get("state") == RunState.PREEMPTED or action in RECREATIONS
    ):
        return TimeUse.CAPACITY
    # A decision to launch does not end the phase CAPACITY. The event SETUP_STARTED ends it, when
    # the TPU is READY.
    if action in (Action.LAUNCH, Action.RESTART) and phase != TimeUse.CAPACITY:
        return TimeUse.LAUNCH
    return phase
