"""Causes of the watch's decisions: a code, and values such as ``seconds`` or ``host``.

status.py turns a cause into a sentence for users.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Value = str | int | float
MAX_VALUES, MAX_TEXT = 20, 2000


class CauseCode(StrEnum):
    """Code of a cause: what the watch observed, or what it concludes from that.

    The keys of ``Cause.values`` are the placeholders in the code's sentence in status.py; for
    PROCESS, see cause_of() in observation.py.
    """

    TPU_STATE = "tpu_state"
    TPU_STATE_AGAIN = "tpu_state_again"
    TPU_UNHEALTHY = "tpu_unhealthy"
    TPU_IN_MAINTENANCE = "tpu_in_maintenance"
    TPU_NAME_TAKEN = "tpu_name_taken"
    TPU_RECREATED = "tpu_recreated"
    TPU_RECREATED_FOR = "tpu_recreated_for"
    WORKERS_MISSING = "workers_missing"
    ZONE_NOT_LISTED = "zone_not_listed"
    WORKERS_UNREACHABLE = "workers_unreachable"
    WORKERS_UNREACHABLE_FOR = "workers_unreachable_for"
    WORKER_FAILED_FIRST = "worker_failed_first"
    OTHER_RUN = "other_run"
    OTHER_RUN_LAUNCHED = "other_run_launched"
    PROCESS = "process"
    PROCESSES_DONE = "processes_done"
    PROCESSES_STILL_ACTIVE = "processes_still_active"
    PROCESSES_PARTLY_ENDED = "processes_partly_ended"
    LAUNCHED_RECENTLY = "launched_recently"
    PROCESS_MISSING = "process_missing"
    DONE_MARKER = "done_marker"
    HEARTBEAT_MISSING = "heartbeat_missing"
    OUTPUT_MISSING = "output_missing"

    CONFIRMING = "confirming"
    LAUNCH_IN = "launch_in"
    RECREATE_IN = "recreate_in"
    RUN_CONTINUES = "run_continues"
    NO_WORKER_REACHABLE = "no_worker_reachable"
    NO_BUCKET = "no_bucket"
    NOT_OURS = "not_ours"
    MULTISLICE = "multislice"
    RELEASE_MISSING = "release_missing"
    NEXT_PASS = "next_pass"  # noqa: S105
    ANSWERS_TOO_OLD = "answers_too_old"
    TPU_CHANGED = "tpu_changed"
    RECORD_CHANGED = "record_changed"
    LEASE_HELD = "lease_held"

    TOO_MANY_PREEMPTIONS = "too_many_preemptions"
    TOO_MANY_REPLACEMENTS = "too_many_replacements"
    TOO_MANY_CRASHES = "too_many_crashes"
    TOO_MANY_NANS = "too_many_nans"
    REPLACE_BY_HAND = "replace_by_hand"
    COPY_CHECKPOINTS = "copy_checkpoints"


@dataclass(frozen=True)
class Cause:
    """The cause of a decision of the watch: a code and its values, such as ``seconds``."""

    code: CauseCode
    values: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, code: CauseCode, **values: Value) -> Cause:
        """Return a cause with this code and these values."""
        return cls(code, values)

    def fields(self) -> dict[str, Value]:
        """Return the code and the values as one flat mapping, as a run record stores them."""
        return {"code": self.code.value, **self.values}


def parse_cause(value: Any) -> Cause:
    """Parse a cause from a run record. Raises ValueError if it is invalid."""
    if not isinstance(value, Mapping) or len(value) > MAX_VALUES:
        raise ValueError("cause")
    values: dict[str, Value] = {}
    for name, item in value.items():
        if isinstance(item, str):
            values[name] = one_line(item)
        elif isinstance(item, int | float) and math.isfinite(item):
            values[name] = item
        else:
            raise ValueError(name)
    return Cause(CauseCode(values.pop("code", "")), values)


def one_line(text: str) -> str:
    """Return a text from a run record as one printable line of at most MAX_TEXT characters."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:MAX_TEXT]
