"""Why the watch judges a run as it does: codes, each with the values that its sentence needs.

status.py writes the sentences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Value = str | int | float
MOST_VALUES, MOST_TEXT = 20, 2000


class CauseCode(StrEnum):
    """What was observed, and what follows from it. Comments name the values of a code."""

    TPU_STATE = "tpu_state"  # tpu_state
    TPU_STATE_AGAIN = "tpu_state_again"  # tpu_state
    TPU_UNHEALTHY = "tpu_unhealthy"  # health
    TPU_IN_MAINTENANCE = "tpu_in_maintenance"
    TPU_NAME_TAKEN = "tpu_name_taken"  # tpu, zone
    TPU_NOT_RECORDED = "tpu_not_recorded"  # run
    TPU_RECREATED = "tpu_recreated"
    TPU_RECREATED_FOR = "tpu_recreated_for"  # run
    WORKERS_MISSING = "workers_missing"  # count, of
    WORKERS_UNREACHABLE = "workers_unreachable"  # hosts
    WORKERS_UNREACHABLE_FOR = "workers_unreachable_for"  # hosts, seconds
    WORKER_FAILED_FIRST = "worker_failed_first"  # host, count
    OTHER_RUN = "other_run"  # run, host
    OTHER_RUN_LAUNCHED = "other_run_launched"  # run
    PROCESS = "process"  # host, and how the process ended
    PROCESSES_DONE = "processes_done"
    PROCESSES_STILL_ACTIVE = "processes_still_active"  # hosts
    PROCESSES_PARTLY_ENDED = "processes_partly_ended"  # hosts, host
    PROCESS_MISSING = "process_missing"
    DONE_MARKER = "done_marker"
    HEARTBEAT_MISSING = "heartbeat_missing"  # host, seconds
    OUTPUT_MISSING = "output_missing"  # seconds

    CONFIRMING = "confirming"
    CONFIRMING_PREEMPTION = "confirming_preemption"
    LAUNCH_IN = "launch_in"  # seconds
    RECREATE_IN = "recreate_in"  # seconds
    RUN_CONTINUES = "run_continues"  # host
    NO_WORKER_REACHABLE = "no_worker_reachable"
    NO_BUCKET = "no_bucket"  # delete
    NOT_OURS = "not_ours"  # delete
    MULTISLICE = "multislice"
    RELEASE_MISSING = "release_missing"  # path, run, config_name
    NEXT_PASS = "next_pass"  # noqa: S105
    ANSWERS_TOO_OLD = "answers_too_old"  # seconds
    TPU_CHANGED = "tpu_changed"  # tpu_state
    RECORD_CHANGED = "record_changed"
    LEASE_HELD = "lease_held"  # error

    TOO_MANY_PREEMPTIONS = "too_many_preemptions"  # count
    TOO_MANY_REPLACEMENTS = "too_many_replacements"  # count
    TOO_MANY_CRASHES = "too_many_crashes"  # count
    TOO_MANY_NANS = "too_many_nans"  # count
    REPLACE_BY_HAND = "replace_by_hand"


@dataclass(frozen=True)
class Cause:
    """A code and its values, such as ``seconds`` or ``host``."""

    code: CauseCode
    values: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, code: CauseCode, **values: Value) -> Cause:
        """Return a cause with these values."""
        return cls(code, values)

    def fields(self) -> dict[str, Value]:
        """Return the cause flat, as a record stores it."""
        return {"code": self.code.value, **self.values}


def parse_cause(value: Any) -> Cause | None:
    """Read a cause of a record; None for one that this version does not know."""
    if not isinstance(value, Mapping) or len(value) > MOST_VALUES:
        return None
    try:
        code = CauseCode(value.get("code"))
    except ValueError:
        return None
    values: dict[str, Value] = {}
    for name, found in value.items():
        if isinstance(found, str):
            values[name] = one_line(found)
        elif isinstance(found, int | float) and math.isfinite(found):
            values[name] = found
        else:
            return None
    del values["code"]
    return Cause(code, values)


def one_line(text: str) -> str:
    """Return a text of a record as one printable line of a sensible length."""
    printable = "".join(sign if sign.isprintable() else " " for sign in text)
    return " ".join(printable.split())[:MOST_TEXT]
