"""The controller's memory of a run: two controllers at once never overwrite each other's word."""

import multiprocessing
import stat
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.action.run_record import changed
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_stores import record_store
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_record import (
    RecordConflictError,
    RecordError,
    RecordFolder,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore

from tests.collections.runs.valid_record import launch_fields

CHANGES = 20


def count_up(folder: str) -> None:
    """Add one to a record's counter, again whenever someone was faster, as a controller would."""
    store = RecordFolder(folder)
    for _ in range(CHANGES):
        while True:
            record = store.read("mine")
            fields = {"counter": record.get("counter", 0) + 1}
            try:
                store.change("mine", record.get("generation", 0), fields, {"kind": "note"})
                break
            except RecordConflictError:
                continue


def test_a_run_that_nobody_has_launched_has_an_empty_record(tmp_path):
    assert RecordFolder(str(tmp_path)).read("mine") == {}


def test_a_change_counts_the_generation_and_keeps_what_happened(tmp_path):
    store = RecordFolder(str(tmp_path))

    store.change("mine", 0, {"wanted": "running"}, {"kind": "launched"})
    record = store.change("mine", 1, {"wanted": "stopped"}, {"kind": "stopped"})

    assert (record["generation"], record["wanted"]) == (2, "stopped")
    assert [event["kind"] for event in record["history"]] == ["launched", "stopped"]
    assert store.read("mine") == record
    assert store.runs() == ["mine"]


def test_a_change_of_a_record_that_someone_else_changed_is_refused(tmp_path):
    store = RecordFolder(str(tmp_path))
    store.change("mine", 0, {"wanted": "running"}, {"kind": "launched"})

    with pytest.raises(RecordConflictError, match="changed by someone else"):
        store.change("mine", 0, {"wanted": "stopped"}, {"kind": "note"})

    assert store.read("mine")["wanted"] == "running"


def test_two_processes_at_once_lose_no_change(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count_up, args=(str(tmp_path),)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0, 0]
    record = RecordFolder(str(tmp_path)).read("mine")
    assert (record["counter"], record["generation"]) == (2 * CHANGES, 2 * CHANGES)


def test_records_are_the_owners_alone(tmp_path):
    RecordFolder(str(tmp_path / "fleet")).change("mine", 0, {}, {"kind": "launched"})

    path = tmp_path / "fleet/runs/mine.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_damaged_record_is_named_and_left_alone(tmp_path):
    path = tmp_path / "runs/mine.json"
    path.parent.mkdir()
    path.write_text('{"wanted":')

    with pytest.raises(RecordError, match=r"mine\.json can't be read"):
        RecordFolder(str(tmp_path)).change("mine", 0, {}, {"kind": "launched"})

    assert path.read_text() == '{"wanted":'


def test_a_place_that_can_not_be_written_is_named(tmp_path):
    (tmp_path / "runs").write_text("a file")

    with pytest.raises(RecordError, match="set fleet_state"):
        RecordFolder(str(tmp_path)).change("mine", 0, {}, {"kind": "launched"})


def test_what_is_neither_a_directory_nor_a_bucket_is_refused():
    with pytest.raises(RecordError, match="no directory"):
        record_store("s3://bucket/prefix")


def test_the_home_directory_may_be_written_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    RecordFolder("~/fleet").change("mine", 0, {}, {"kind": "launched"})

    assert Path(tmp_path / "fleet/runs/mine.json").is_file()


def answer(folder, wanted=None, **more):
    """Change a record as the module tpufleet.core.run_record does; return its answer."""
    asked = {"run": "mine", "fleet_state": str(folder), "wanted": wanted}
    asked["fields"] = launch_fields() if wanted == "running" else {}
    return changed(RunStore(RecordFolder(str(folder))), asked | more)


def test_each_launch_is_the_attempt_after_the_last_one(tmp_path):
    assert answer(tmp_path, "running")["record"]["attempt"] == 1
    assert answer(tmp_path, "running")["record"]["attempt"] == 2


def test_a_run_that_was_found_running_is_wanted_again_in_the_same_attempt(tmp_path):
    answer(tmp_path, "running")
    answer(tmp_path, "stopped")

    record = answer(tmp_path, "running", same_attempt=True)["record"]

    assert (record["wanted"], record["attempt"]) == ("running", 1)


def test_a_run_that_is_done_stays_done_when_it_is_stopped(tmp_path):
    answer(tmp_path, "running")
    answer(tmp_path, "done")

    assert answer(tmp_path, "stopped")["record"]["wanted"] == "done"
    assert answer(tmp_path, "running")["record"]["attempt"] == 2


def test_a_stop_of_a_run_that_nobody_knows_here_says_what_may_bring_it_back(tmp_path):
    told = answer(tmp_path, "stopped")

    assert not told["changed"]
    [warning] = told["warnings"]
    assert f"{tmp_path} knows no run mine" in warning
    assert "kill.yml -e run=mine -e fleet_state=THAT" in warning


def test_a_stop_of_a_run_that_is_known_warns_of_nothing(tmp_path):
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

    with pytest.raises(RunError, match="another controller has taken it over"):
        answer(tmp_path, "running", fence=6)

    assert answer(tmp_path, "running", fence=7)["record"]["attempt"] == 2


def test_a_stop_of_a_run_with_an_invalid_record_warns_and_goes_on_to_its_processes(tmp_path):
    RecordFolder(str(tmp_path)).change("mine", 0, {"wanted": "running"}, {"kind": "note"})

    told = answer(tmp_path, "stopped")

    assert not told["changed"]
    assert "invalid record" in told["warnings"][0]


SPENT = {"best_step": 70, "crashes": 6, "state": "given_up"}


@pytest.mark.parametrize(("by_watch", "left"), [(False, {"best_step": 70}), (True, SPENT)])
def test_a_run_that_a_person_launches_again_has_its_whole_budget(tmp_path, by_watch, left):
    answer(tmp_path, "running")
    RecordFolder(str(tmp_path)).change("mine", 1, {"watch": SPENT}, {})

    record = answer(tmp_path, "running", only_if_wanted=by_watch)["record"]

    assert record["watch"] == left
