"""The module tpufleet.core.run_record: attempts, wanted states and budgets."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_change import changed
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_record import RecordFolder
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore

from harness.valid_record import launch_fields, record_fields


def answer(folder, wanted=None, **more):
    """Change a record as the module tpufleet.core.run_record does; return its answer."""
    asked = {"run": "mine", "fleet_state": str(folder), "wanted": wanted}
    asked["fields"] = launch_fields() if wanted == "running" else {}
    return changed(RunStore(RecordFolder(str(folder))), asked | more)


def test_each_launch_is_the_attempt_after_the_last_one(tmp_path):
    assert answer(tmp_path, "running")["record"]["attempt"] == 1
    assert answer(tmp_path, "running")["record"]["attempt"] == 2


def test_a_run_found_running_is_wanted_again_in_the_same_attempt(tmp_path):
    answer(tmp_path, "running")
    answer(tmp_path, "stopped")

    record = answer(tmp_path, "running", same_attempt=True)["record"]

    assert (record["wanted"], record["attempt"]) == ("running", 1)


def test_a_run_that_is_done_stays_done_when_it_is_stopped(tmp_path):
    answer(tmp_path, "running")
    answer(tmp_path, "done")

    assert answer(tmp_path, "stopped")["record"]["wanted"] == "done"
    assert answer(tmp_path, "running")["record"]["attempt"] == 2


def test_stopping_an_unknown_run_warns_of_other_state_directories(tmp_path):
    told = answer(tmp_path, "stopped")

    assert not told["changed"]
    [warning] = told["warnings"]
    assert f"{tmp_path}: no record of run mine" in warning
    assert "kill.yml -e run=mine -e fleet_state=OTHER" in warning


def test_stopping_a_known_run_has_no_warning(tmp_path):
    answer(tmp_path, "running")

    assert answer(tmp_path, "stopped")["warnings"] == []


def test_a_first_launch_that_fails_leaves_the_run_stopped(tmp_path):
    before = answer(tmp_path, "running")

    told = answer(tmp_path, launch_failed=True, was_wanted=before["was_wanted"], error="it failed")

    assert told["record"]["wanted"] == "stopped"
    assert told["record"]["history"][-1]["text"] == "it failed"


def test_a_run_that_was_wanted_stays_wanted_when_its_relaunch_fails(tmp_path):
    answer(tmp_path, "running")
    again = answer(tmp_path, "running")

    told = answer(tmp_path, launch_failed=True, was_wanted=again["was_wanted"], error="it failed")

    assert told["record"]["wanted"] == "running"
    assert told["record"]["history"][-1]["text"] == "it failed"


def test_a_failed_launch_does_not_revive_a_run_that_was_stopped_meanwhile(tmp_path):
    answer(tmp_path, "running")
    answer(tmp_path, "stopped")

    told = answer(tmp_path, launch_failed=True, was_wanted=True, error="it failed")

    assert told["record"]["wanted"] == "stopped"


def test_a_controller_whose_lease_was_taken_over_changes_nothing(tmp_path):
    answer(tmp_path, "running")
    store = RecordFolder(str(tmp_path))
    store.change("mine", 1, {"fence": 7}, {})

    with pytest.raises(RunError, match="another controller has acted on it"):
        answer(tmp_path, "running", fence=6)

    assert answer(tmp_path, "running", fence=7)["record"]["attempt"] == 2


def test_stopping_a_run_with_an_invalid_record_is_a_warning(tmp_path):
    RecordFolder(str(tmp_path)).change("mine", 0, {"wanted": "running"}, {"kind": "note"})

    told = answer(tmp_path, "stopped")

    assert not told["changed"]
    assert "invalid record" in told["warnings"][0]


SPENT = {"best_step": 70, "crashes": 6, "state": "given_up"}


@pytest.mark.parametrize(("by_watch", "left"), [(False, {"best_step": 70}), (True, SPENT)])
def test_only_a_launch_by_a_person_resets_the_budgets(tmp_path, by_watch, left):
    answer(tmp_path, "running")
    RecordFolder(str(tmp_path)).change("mine", 1, {"watch": SPENT}, {})

    record = answer(tmp_path, "running", only_if_wanted=by_watch)["record"]

    assert record["watch"] == left


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({"attempt": 2, "wanted": "running"}, "done"),
        ({"attempt": 3, "wanted": "running"}, "running"),
        ({"attempt": 2, "wanted": "stopped"}, "stopped"),
    ],
)
def test_a_run_that_was_stopped_or_launched_again_meanwhile_is_not_recorded_as_done(
    tmp_path, record, wanted
):
    store = RecordFolder(str(tmp_path))
    store.change("mine", 0, record_fields(**record), {})

    answer(tmp_path, "done", attempt=2)

    assert store.read("mine")["wanted"] == wanted
