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

    The comment after each code lists the keys in ``Cause.values`` of causes with this code.
    """

    TPU_STATE = "tpu_state"  # values: tpu_state
    TPU_STATE_AGAIN = "tpu_state_again"  # values: tpu_state
    TPU_UNHEALTHY = "tpu_unhealthy"  # values: health
    TPU_IN_MAINTENANCE = "tpu_in_maintenance"
    TPU_NAME_TAKEN = "tpu_name_taken"  # values: tpu, zone
    TPU_NOT_RECORDED = "tpu_not_recorded"  # values: run
    TPU_RECREATED = "tpu_recreated"
    TPU_RECREATED_FOR = "tpu_recreated_for"  # values: run
    WORKERS_MISSING = "workers_missing"  # values: count, of (the expected count)
    ZONE_NOT_LISTED = "zone_not_listed"  # values: zone
    WORKERS_UNREACHABLE = "workers_unreachable"  # values: hosts
    WORKERS_UNREACHABLE_FOR = "workers_unreachable_for"  # values: hosts, seconds
    WORKER_FAILED_FIRST = "worker_failed_first"  # values: host, count
    OTHER_RUN = "other_run"  # values: run, host
    OTHER_RUN_LAUNCHED = "other_run_launched"  # values: run
    PROCESS = "process"  # values: see cause_of() in observation.py
    PROCESSES_DONE = "processes_done"
    PROCESSES_STILL_ACTIVE = "processes_still_active"  # values: hosts
    PROCESSES_PARTLY_ENDED = "processes_partly_ended"  # values: hosts, host
    LAUNCHED_RECENTLY = "launched_recently"  # values: seconds
    PROCESS_MISSING = "process_missing"
    DONE_MARKER = "done_marker"
    HEARTBEAT_MISSING = "heartbeat_missing"  # values: host, seconds
    OUTPUT_MISSING = "output_missing"  # values: seconds

    CONFIRMING = "confirming"
    LAUNCH_IN = "launch_in"  # values: seconds
    RECREATE_IN = "recreate_in"  # values: seconds
    RUN_CONTINUES = "run_continues"  # values: host
    NO_WORKER_REACHABLE = "no_worker_reachable"
    NO_BUCKET = "no_bucket"  # values: delete (a command)
    NOT_OURS = "not_ours"  # values: delete (a command)
    MULTISLICE = "multislice"
    RELEASE_MISSING = "release_missing"  # values: path, run, options (of train.yml)
    NEXT_PASS = "next_pass"  # noqa: S105
    ANSWERS_TOO_OLD = "answers_too_old"  # values: seconds
    TPU_CHANGED = "tpu_changed"  # values: tpu_state
    RECORD_CHANGED = "record_changed"
    LEASE_HELD = "lease_held"  # values: error

    TOO_MANY_PREEMPTIONS = "too_many_preemptions"  # values: count
    TOO_MANY_REPLACEMENTS = "too_many_replacements"  # values: count
    TOO_MANY_CRASHES = "too_many_crashes"  # values: count
    TOO_MANY_NANS = "too_many_nans"  # values: count
    REPLACE_BY_HAND = "replace_by_hand"
    COPY_CHECKPOINTS = "copy_checkpoints"  # values: run


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


def parse_cause(value: Any) -> Cause | None:
    """Parse a cause from a run record; None if it is invalid or has a code of a newer version."""
    if not isinstance(value, Mapping) or len(value) > MAX_VALUES:
        return None
    try:
        code = CauseCode(value.get("code"))
    except ValueError:
        return None
    values: dict[str, Value] = {}
    for name, item in value.items():
        if isinstance(item, str):
            values[name] = one_line(item)
        elif isinstance(item, int | float) and math.isfinite(item):
            values[name] = item
        else:
            return None
    del values["code"]
    return Cause(code, values)


def one_line(text: str) -> str:
    """Return a text from a run record as one printable line of at most MAX_TEXT characters."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:MAX_TEXT]
