"""The action run_record: it passes its options on, and returns errors instead of raising them."""

import json

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.tpufleet.core.plugins.action import run_record

from harness.valid_record import record_fields
from tests.collections.running_actions import run_action


@pytest.fixture
def ask(tmp_path):
    """Return a function that runs the action.

    The run mine has attempt 3 and the fencing number 7. The record of the run damaged is invalid.
    """
    (tmp_path / "runs").mkdir()
    records = {"mine": record_fields(attempt=3, fence=7), "damaged": "invalid"}
    for run, record in records.items():
        (tmp_path / f"runs/{run}.json").write_text(json.dumps(record))
    return lambda **options: run_action(run_record, fleet_state=str(tmp_path), **options)


@pytest.mark.parametrize(
    ("options", "is_changed"),
    [({"attempt": 3, "fence": 7}, True), ({"attempt": 2}, False), ({"fence": 6}, False)],
    ids=["the last attempt", "an earlier attempt", "an earlier action"],
)
def test_the_desired_state_is_changed_only_for_the_named_attempt_and_action(
    ask, options, is_changed
):
    assert ask(run="mine", wanted="done", **options).get("changed", False) == is_changed
    assert (ask(run="mine")["record"]["wanted"] == "done") == is_changed


def test_check_mode_changes_no_record(ask):
    assert ask(run="mine", wanted="stopped", check=True)["changed"]
    assert ask(run="mine")["record"]["wanted"] == "running"


def test_an_invalid_record_is_a_warning_unless_it_is_the_named_one(ask):
    named, every = ask(run="damaged"), ask()

    assert (named["failed"], named["unusable"]) == (True, True)
    assert not ask(run="mine", wanted="done", fence=6)["unusable"]
    assert list(every["records"]) == ["mine"]
    assert "damaged" in every["warnings"][0]


def test_heartbeats_are_read_only_with_the_option_and_may_be_unreadable(ask, tmp_path):
    assert "passes" not in ask()
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch/passes").touch()

    assert ask(passes=True)["passes"] == []


def test_a_desired_state_without_a_run_is_refused(ask):
    with pytest.raises(AnsibleActionFail, match="wanted is set without run"):
        ask(wanted="done")
