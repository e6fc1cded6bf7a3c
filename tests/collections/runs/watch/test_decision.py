"""Decisions of the watch over many passes and for any observation, and what it remembers."""

from dataclasses import asdict, replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import (
    ReasonCode,
    RunState,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import Action
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import (
    DEAD,
    FOREIGN,
    GONE,
    NOT_LISTED,
    Observation,
    ProcessStatus,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import (
    RunRecord,
    parse_record,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_decision import decide
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_memory import Memory
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collections.runs.observations import (
    FOREIGN_POD,
    LIMITS,
    NOW,
    POD,
    TRAINING,
    causes,
    decided,
    ended,
    pod,
    remembered,
    values,
)
from tests.collections.runs.records import run_record

COUNTS = {
    "best_step": 6,
    "crashes": 2,
    "nans": 1,
    "replacements": 1,
    "bad_worker": "w1",
    "bad_times": 2,
    "preemptions": 2,
    "tries": 4,
    "not_before": NOW + 50,
}
CLEARED = {
    "best_step": 7,
    "crashes": 0,
    "nans": 0,
    "replacements": 0,
    "bad_worker": "",
    "bad_times": 0,
}


def test_a_new_best_step_clears_all_counts_but_preemptions():
    decision = decided(pod(TRAINING), COUNTS)

    state = {"state": "running", "since": NOW}
    assert remembered(decision, COUNTS) == CLEARED | state | {"tries": 0, "not_before": 0.0}


def test_a_new_best_step_of_an_ended_run_does_not_shorten_the_wait():
    decision = decided(pod(ended("75", step=7)), COUNTS)

    state = {"state": "interrupted", "since": NOW}
    assert remembered(decision, COUNTS) == CLEARED | state
    assert (decision.action, causes(decision)) == (Action.NOTHING, ["process", "launch_in"])
    assert values(decision)["seconds"] == 50


def test_a_best_step_that_was_reached_before_clears_no_counts():
    watch = COUNTS | {"best_step": 7, "state": "running"}

    assert remembered(decided(pod(TRAINING), watch), watch) == {}


@pytest.mark.parametrize(("tries", "wait"), [(0, 10), (6, 640), (20, 10 * 2**20), (21, 10 * 2**20)])
def test_the_wait_before_a_relaunch_doubles_up_to_a_maximum(tries, wait):
    limits = replace(LIMITS, longest_backoff=1e12)

    decision = decided(pod(ended("75")), {"tries": tries}, limits)

    assert decision.memory.not_before == NOW + wait


def test_the_memory_of_the_watch_reads_back_equal_and_values_of_other_types_are_ignored():
    memory = Memory("running", 1.5, 1, 2, 3, 4, 5, 6, 7.5, 8, "w1", 9)

    assert Memory.of(asdict(memory)) == memory
    odd = {"state": 5, "since": "x", "crashes": 1.5, "tries": True, "not_before": 3, "x": 1}
    assert Memory.of(odd) == Memory(not_before=3)


def test_times_that_a_wrong_clock_recorded_are_limited_to_what_is_possible():
    pause = decided(pod(ended("75")), {"not_before": NOW + 86400, "state": "interrupted"})
    state = decided(pod(ended("1"), TRAINING), {"since": NOW + 86400, "state": "ending"})

    assert pause.memory.not_before == NOW + LIMITS.longest_backoff
    assert state.memory.since == NOW


RECORD = run_record(attempt=3, checkpoints="/mnt/shared/checkpoints/mine")


def changed(record: RunRecord, **fields) -> RunRecord:
    return parse_record(record.run, record.fields() | fields)


def remember(record: RunRecord, decision) -> RunRecord:
    return changed(record, watch=decision.memory.fields())


PROCESSES = st.builds(
    ProcessStatus,
    host=st.sampled_from(["w0", "w1"]),
    state=st.sampled_from(RunState),
    reason_code=st.sampled_from(ReasonCode),
    has_environment=st.booleans(),
    step=st.none() | st.integers(0, 50),
    has_heartbeat=st.booleans(),
    heartbeat_age=st.none() | st.floats(0, 1e5),
    ended_at=st.floats(0, NOW),
    attempt=st.integers(0, 5),
    other_run=st.sampled_from(["", "b"]),
)
OBSERVATION = {
    "tpu_state": st.sampled_from(
        ["READY", "PREEMPTED", "TERMINATED", GONE, NOT_LISTED, "CREATING", "STOPPED"]
    ),
    "processes": st.lists(PROCESSES, max_size=3).map(tuple),
    "workers": st.integers(1, 3),
    "health": st.sampled_from(["", "HEALTHY", "UNHEALTHY_MAINTENANCE", "UNHEALTHY_TENSORFLOW"]),
    "is_confirmed": st.booleans(),
    "tpus": st.sampled_from([(), (POD,), (FOREIGN_POD,)]),
}
FOREIGN_OBSERVATION = {"tpu_state": st.just(FOREIGN), "tpus": st.just((FOREIGN_POD,))}
OBSERVATIONS = st.builds(Observation, **OBSERVATION) | st.builds(
    Observation, **OBSERVATION | FOREIGN_OBSERVATION
)
RECORDS = st.builds(
    run_record,
    wanted=st.sampled_from(["running", "stopped", "done"]),
    attempt=st.integers(0, 5),
    watch=st.sampled_from(
        [
            None,
            {},
            {"crashes": "many", "tries": 3, "odd": 1},
            {"bad_worker": "w1", "bad_times": 3, "best_step": 50, "state": "ending", "since": 0.0},
        ]
    ),
)


@settings(max_examples=300)
@given(record=RECORDS, observed=OBSERVATIONS)
def test_an_unwanted_run_is_never_started_and_no_tpu_deleted_without_confirmation(record, observed):
    """A second list of TPUs must confirm that a TPU is lost or has unreachable workers.

    A TPU with a bad worker needs no second list, because all its workers have answered. Before its
    deletion, the pass lists the TPUs again if the last list is older than 90 s (test_pass.py).
    """
    decision = decide(record, observed, NOW)

    assert decision == decide(record, observed, NOW)
    if record.wanted != "running":
        assert decision.action in (Action.NOTHING, Action.STOP)
    elif observed.tpu_state == FOREIGN:
        assert decision.action is Action.NOTHING
    if decision.action is Action.REPLACE:
        assert observed.is_deletable
        is_complete = not any(process.is_unreachable for process in observed.processes)
        assert observed.is_confirmed or is_complete
        assert not any(process.other_run for process in observed.processes)
        assert observed.health != "UNHEALTHY_MAINTENANCE"
    if decision.action is Action.RECREATE:
        assert observed.is_confirmed
        assert observed.tpu_state in DEAD
    if decision.action in (Action.LAUNCH, Action.RESTART):
        assert observed.tpu_state == "READY"
        away = (RunState.UNREACHABLE, RunState.UNKNOWN)
        assert not any(process.state in away for process in observed.processes)
    if decision.action is Action.LAUNCH:
        assert not any(process.is_active for process in observed.processes)


@settings(max_examples=100)
@given(code=st.sampled_from(["1", "3", "76", "127", "SEGV", "KILL"]), workers=st.integers(1, 3))
def test_a_run_that_fails_forever_is_given_up_after_a_bounded_number_of_launches(code, workers):
    record, now, launches = RECORD, NOW, 0
    for _ in range(200):
        processes = [replace(ended(code), attempt=record.attempt, ended_at=now)] * workers
        decision = decide(record, pod(*processes), now)
        record = remember(record, decision)
        if decision.action is Action.GIVE_UP:
            break
        if decision.action is Action.LAUNCH:
            launches += 1
            record = changed(record, attempt=record.attempt + 1)
        now += 60

    assert decision.action is Action.GIVE_UP
    assert launches <= LIMITS.crashes
