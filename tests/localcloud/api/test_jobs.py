"""Background jobs: what they do when the server stops."""

import logging

import pytest

from localcloud.api.jobs import Jobs, StoppingError
from localcloud.machines.interface import MachineError


@pytest.fixture
def jobs() -> Jobs:
    return Jobs(logging.getLogger("test"), parallel=1)


def stops_and_fails(jobs: Jobs):
    """Return an action that stops the server and fails."""

    def action(item: str) -> None:
        jobs.stop(0)
        raise MachineError(f"{item} would not start")

    return action


def test_a_stop_with_remaining_items_is_an_error_even_after_a_failure(jobs):
    with pytest.raises(StoppingError):
        jobs.run_each(["w0", "w1"], stops_and_fails(jobs), give_up=False)


@pytest.mark.parametrize(("items", "give_up"), [(["w0", "w1"], True), (["w0"], False)])
def test_a_failure_is_returned_if_no_further_call_would_follow(jobs, items, give_up):
    failures = jobs.run_each(items, stops_and_fails(jobs), give_up=give_up)

    assert failures == ["w0 would not start"]
