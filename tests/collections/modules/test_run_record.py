"""The module tpufleet.core.run_record: attempts, desired states and budgets."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import DesiredState
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_change import (
    changed,
    no_record,
    record_failure,
    unknown_run_text,
    want,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_error import RecordError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import RecordFolder
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore

from harness.valid_record import launch_spec, record_fields


def store_of(folder):
    return RunStore(RecordFolder(str(folder)))


def answer(folder, wanted, run="mine", **more):
    """Change a record as the module tpufleet.core.run_record does; return its answer."""
    return changed(store_of(folder), run, DesiredState(wanted), **more)


def launched(folder, **more):
    """Record a launch after its workers have been checked."""
    return want(store_of(folder), launch_spec(), is_checked=True, **more)


def failed(folder, *, was_wanted):
    """Record a failed launch; return the record."""
    store = store_of(folder)
    record_failure(store, "mine", store.read("mine").attempt, "it failed", was_wanted=was_wanted)
    return store.read("mine")


def test_each_launch_is_the_attempt_after_the_last_one(tmp_path):
    assert launched(tmp_path).launch.attempt == 1
    assert launched(tmp_path).launch.attempt == 2


def test_a_run_found_running_is_wanted_again_in_the_same_attempt(tmp_path):
    launched(tmp_path)
    answer(tmp_path, "stopped")

    record = answer(tmp_path, "running")["record"]

    assert (record["wanted"], record["attempt"]) == ("running", 1)


def test_a_run_that_is_done_stays_done_when_it_is_stopped(tmp_path):
    launched(tmp_path)
    answer(tmp_path, "done")

    assert answer(tmp_path, "stopped")["record"]["wanted"] == "done"
    assert launched(tmp_path).launch.attempt == 2


def test_stopping_a_run_without_a_record_names_the_runs_that_have_one(tmp_path):
    launched(tmp_path)

    result = answer(tmp_path, "stopped", run="mien")

    assert (result["changed"], result["exists"], result["others"]) == (False, False, ["mine"])


def test_an_unknown_run_can_be_stopped_if_run_names_cannot_be_read(tmp_path, monkeypatch):
    def fail(_):
        raise RecordError("no such bucket")

    monkeypatch.setattr(RunStore, "names", fail)

    assert answer(tmp_path, "stopped")["others"] == []


def test_a_run_whose_record_is_done_exists(tmp_path):
    launched(tmp_path)
    answer(tmp_path, "done")

    assert answer(tmp_path, "stopped")["exists"]


@pytest.mark.parametrize("text", ['{"wanted": "x"}', "[]", "{"])
def test_a_run_with_an_invalid_record_can_be_stopped_with_a_warning(tmp_path, text):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/broken.json").write_text(text)

    result = answer(tmp_path, "stopped", run="broken")

    assert (result["changed"], result["exists"]) == (False, True)
    assert "ansible-playbook playbooks/kill.yml -e run=" in result["warnings"][0]


def test_an_unknown_run_is_refused_with_the_closest_names_and_the_status_command():
    error = unknown_run_text("fisrt", ["other", "first"], "/state", has_worker=True)

    assert "no run fisrt is known: it has no record in /state" in error
    assert "Runs with a record: first, other." in error
    assert "ansible-playbook playbooks/status.yml" in error


def test_a_run_is_not_called_unknown_if_no_worker_can_be_asked():
    assert "is known" not in unknown_run_text("fisrt", [], "/state", has_worker=False)


def test_the_warning_for_a_run_that_only_workers_have_names_other_fleet_states():
    assert "kill.yml -e run=mine -e fleet_state=OTHER" in no_record("mine", "/state")


def test_a_first_launch_that_fails_leaves_the_run_stopped(tmp_path):
    record = failed(tmp_path, was_wanted=launched(tmp_path).was_wanted)

    assert (record.wanted, record.history[-1].text) == ("stopped", "it failed")


def test_a_run_that_was_wanted_stays_wanted_when_its_relaunch_fails(tmp_path):
    launched(tmp_path)

    record = failed(tmp_path, was_wanted=launched(tmp_path).was_wanted)

    assert (record.wanted, record.history[-1].text) == ("running", "it failed")


def test_a_failed_launch_does_not_revive_a_run_that_was_stopped_meanwhile(tmp_path):
    launched(tmp_path)
    answer(tmp_path, "stopped")

    assert failed(tmp_path, was_wanted=True).wanted == "stopped"


def test_a_controller_whose_lease_was_taken_over_changes_nothing(tmp_path):
    launched(tmp_path)
    store = RecordFolder(str(tmp_path))
    store.change("mine", 1, {"fence": 7}, {})

    with pytest.raises(RunError, match="another controller has acted on it"):
        launched(tmp_path, fence=6)

    assert launched(tmp_path, fence=7).launch.attempt == 2


def test_stopping_a_run_with_an_invalid_record_is_a_warning(tmp_path):
    RecordFolder(str(tmp_path)).change("mine", 0, {"wanted": "running"}, {"kind": "note"})

    result = answer(tmp_path, "stopped")

    assert not result["changed"]
    assert "invalid record" in result["warnings"][0]


SPENT = {"best_step": 70, "crashes": 6, "state": "given_up"}


@pytest.mark.parametrize(("by_watch", "left"), [(False, {"best_step": 70}), (True, SPENT)])
def test_only_a_launch_by_a_user_resets_the_budgets(tmp_path, by_watch, left):
    launched(tmp_path)
    RecordFolder(str(tmp_path)).change("mine", 1, {"watch": SPENT}, {})

    launched(tmp_path, is_relaunch=by_watch)

    assert store_of(tmp_path).read("mine").watch == left


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({"attempt": 2, "wanted": "running"}, "done"),
        ({"attempt": 3, "wanted": "running"}, "running"),
        ({"attempt": 3, "wanted": "stopped"}, "stopped"),
        ({"attempt": 2, "wanted": "stopped"}, "done"),
    ],
)
def test_only_the_last_attempt_of_a_run_is_recorded_as_done(tmp_path, record, wanted):
    store = RecordFolder(str(tmp_path))
    store.change("mine", 0, record_fields(**record), {})

    answer(tmp_path, "done", attempt=2)

    assert store.read("mine")["wanted"] == wanted
