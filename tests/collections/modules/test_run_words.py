"""What the workers of a launch get for their rendezvous."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import (
    RunError,
    environment,
)

from tests.collections.modules.test_run_launch import LAUNCH, PLACES

MEETING = LAUNCH._replace(peers=("pod-w0", "pod-w1"), token="abc")


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
