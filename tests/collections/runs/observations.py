"""Observed TPUs and processes of a run, for tests of the watch's decisions."""

from dataclasses import asdict, replace
from typing import Any

from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.decision import Decision
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import (
    Observation,
    ObservedTpu,
    ProcessStatus,
    parse_process,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_decision import decide
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_memory import Limits, Memory

from tests.collections.runs.answers import report_end
from tests.collections.runs.records import run_record

NOW = 1_000_000.0
LIMITS = Limits()
TRAINING = ProcessStatus(
    "", RunState.TRAINING, step=7, has_heartbeat=True, heartbeat_age=1.0, attempt=3
)
SILENT = ProcessStatus("", RunState.RUNNING, attempt=3)
"""A trainer that writes no heartbeat."""
IDLE = ProcessStatus("", RunState.LOST, attempt=3)
WAITING = ProcessStatus("", RunState.WAITING, attempt=3)
UNREACHABLE = ProcessStatus("", RunState.UNREACHABLE)
REPLACED = {
    **{"state": "preempted", "since": NOW, "not_before": NOW + 10},
    **{"replacements": 1, "bad_worker": "", "bad_times": 0},
}
"""What the watch remembers when it replaces a run's TPU for the first time."""
POD = ObservedTpu("pod", "us-central2-b", "7", "READY", is_ours=True)
FOREIGN_POD = replace(POD, id="9", is_ours=False)


def pod(*processes: ProcessStatus, **more: Any) -> Observation:
    """Return the observation of a READY TPU with these processes on w0, w1 and so on."""
    named = tuple(replace(process, host=f"w{index}") for index, process in enumerate(processes))
    fields = {"tpu_state": "READY", "processes": named, "workers": len(processes), "tpus": (POD,)}
    return Observation(**(fields | more))


def lost(state: str = "PREEMPTED", **more: Any) -> Observation:
    """Return the observation of a lost TPU, whose state a second list of TPUs has confirmed."""
    return Observation(state, **({"is_confirmed": True} | more))


def ended(code: str, ago: float = 100, **more: Any) -> ProcessStatus:
    """Return a process that ended ``ago`` seconds ago with an exit code or a signal's name."""
    process = parse_process("", report_end(code, attempt=3, ended_at=NOW - ago))
    return replace(process, **more)


def decided(
    observed: Observation,
    watch: dict[str, Any] | None = None,
    limits: Limits = LIMITS,
    **fields: Any,
) -> Decision:
    """Return the watch's decision for a run in its third attempt, with checkpoints in a bucket."""
    record = run_record(attempt=3, watch=watch or {}, **fields)
    return decide(record, observed, NOW, limits)


def causes(decision: Decision) -> list[str]:
    """Return the codes of the causes that a decision names."""
    return [cause.code.value for cause in decision.causes]


def values(decision: Decision) -> dict[str, Any]:
    """Return the values in the causes of a decision, such as times and counts, by name."""
    return {name: value for cause in decision.causes for name, value in cause.values.items()}


def remembered(decision: Decision, watch: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what a decision changes in the watch's memory of a run: fields and new values."""
    default_fields = asdict(Memory.of(watch or {}))
    return {
        name: value
        for name, value in decision.memory.fields().items()
        if value != default_fields[name]
    }
