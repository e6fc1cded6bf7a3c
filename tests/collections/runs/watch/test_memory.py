"""What the watch remembers of a run between passes, and how long it waits."""

from dataclasses import asdict, replace

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import Action
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_memory import Memory

from tests.collections.runs.observations import (
    LIMITS,
    NOW,
    TRAINING,
    causes,
    decided,
    ended,
    pod,
    remembered,
    values,
)

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


def test_the_same_step_as_before_clears_nothing():
    watch = COUNTS | {"best_step": 7, "state": "running"}

    assert remembered(decided(pod(TRAINING), watch), watch) == {}


@pytest.mark.parametrize(("tries", "wait"), [(0, 10), (6, 640), (20, 10 * 2**20), (21, 10 * 2**20)])
def test_a_wait_doubles_up_to_a_maximum(tries, wait):
    limits = replace(LIMITS, longest_backoff=1e12)

    decision = decided(pod(ended("75")), {"tries": tries}, limits)

    assert decision.memory.not_before == NOW + wait


def test_a_memory_reads_back_equal_and_values_of_other_types_are_ignored():
    memory = Memory("running", 1.5, 1, 2, 3, 4, 5, 6, 7.5, 8, "w1", 9)

    assert Memory.of(asdict(memory)) == memory
    odd = {"state": 5, "since": "x", "crashes": 1.5, "tries": True, "not_before": 3, "x": 1}
    assert Memory.of(odd) == Memory(not_before=3)


def test_times_that_a_wrong_clock_recorded_are_limited_to_what_is_possible():
    pause = decided(pod(ended("75")), {"not_before": NOW + 86400, "state": "interrupted"})
    state = decided(pod(ended("1"), TRAINING), {"since": NOW + 86400, "state": "ending"})

    assert pause.memory.not_before == NOW + LIMITS.longest_backoff
    assert state.memory.since == NOW
