"""What a meeting of the workers, and another worker's end, are called."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import (
    RunError,
    environment,
    state_in_words,
)

from tests.collections.modules.test_run_launch import LAUNCH, PLACES

MEETING = LAUNCH._replace(peers=("pod-w0", "pod-w1"), token="abc")


def ended(status: str, why: str) -> dict:
    return {"status": status, "code": "exited", "result": "exit-code", "why": why}


def test_a_worker_that_waits_says_for_whom():
    met = {"waiting_for": ["pod-w1", "pod-w3"]}

    assert (
        state_in_words({"ActiveState": "active"}, None, None, met) == "waiting for pod-w1, pod-w3"
    )


def test_a_trainer_that_runs_waits_for_nobody():
    words = state_in_words({"ActiveState": "active"}, {"state": "running"}, None, {"attempt": "1"})

    assert words == "training"


def test_an_attempt_that_did_not_come_together_names_who_is_missing():
    words = state_in_words(None, None, ended("76", "pod-w1 did not come"))

    assert words == "not started: pod-w1 did not come"


def test_a_worker_that_ended_because_of_another_names_it():
    words = state_in_words(None, None, ended("77", "pod-w1 ended with 9"))

    assert words == "ended as pod-w1 ended with 9"


def test_the_workers_meet_at_a_port_of_their_own_beside_the_coordinators():
    variables = environment(MEETING, PLACES, {})

    assert variables["TPUFLEET_MEET_AT"] == "10.0.0.2:9479"
    assert variables["TPUFLEET_MEET_AS"] == "pod-w0 pod-w1"


def test_a_run_of_one_process_meets_nobody():
    alone = MEETING._replace(num_processes=1, peers=("pod-w0",))

    assert not [name for name in environment(alone, PLACES, {}) if "MEET" in name]


def test_a_meeting_without_everybodys_name_is_refused():
    with pytest.raises(RunError, match="2 processes and 1 names"):
        environment(MEETING._replace(peers=("pod-w0",)), PLACES, {})


def test_how_the_workers_come_together_is_no_part_of_what_is_launched():
    assert MEETING.identity() == LAUNCH.identity()
