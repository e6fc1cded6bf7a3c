"""The archive: records of finished runs move there and are still read and changed by name."""

import json
import threading
import time

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import Action, EventKind
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.history import Event
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_error import (
    RecordError,
    UnusableRecordError,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import (
    RecordFolder,
    record_store,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import (
    ARCHIVE_AFTER_S,
    RunStore,
)

from tests.collections.runs.passes import Controller, running
from tests.collections.runs.records import keep_release, record_fields

NOW = time.time()
LONG_AGO = [{"time": NOW - ARCHIVE_AFTER_S - 1, "kind": "launched"}]
OVER = {"wanted": "done", "history": LONG_AGO, "generation": 7}


@pytest.fixture
def folders(tmp_path):
    return RecordFolder(str(tmp_path)), RecordFolder(str(tmp_path / "archive"))


def archived(store):
    return store.archive_finished(store.read_all().usable.values(), NOW)


@pytest.mark.parametrize("wanted", ["done", "stopped"])
def test_a_run_that_finished_a_week_ago_is_archived_and_still_found_by_name(folders, wanted):
    store = RunStore(*folders)
    folders[0].put("old", 0, record_fields("old", **OVER | {"wanted": wanted}))
    before = store.read("old")

    assert archived(store) == ["old"]

    assert store.read_all().usable == {}
    assert store.read("old") == store.read_all(archived=True).usable["old"] == before


@pytest.mark.parametrize(
    "fields",
    [
        {"wanted": "running"},
        {"history": [*LONG_AGO, {"time": NOW - 60, "kind": "stopped"}]},
        {"wanted_until": NOW - 60},
        {"history": []},
    ],
)
def test_a_run_that_is_wanted_or_has_just_changed_is_not_archived(folders, fields):
    store = RunStore(*folders)
    folders[0].put("mine", 0, record_fields(**OVER | fields))

    assert archived(store) == []
    assert "mine" in store.read_all().usable


def test_a_record_that_cannot_be_copied_to_the_archive_stays(folders, tmp_path):
    store = RunStore(*folders)
    folders[0].put("old", 0, record_fields("old", **OVER))
    (tmp_path / "archive/runs/.old.lock").mkdir(parents=True)  # so that nothing can be written

    with pytest.raises(RecordError, match="can't write"):
        archived(store)

    assert list(store.read_all().usable) == ["old"]


def test_an_invalid_archived_record_is_named_in_the_error(folders):
    folders[0].put("old", 0, record_fields("old", **OVER))
    folders[1].put("old", 0, {"generation": "x"})

    with pytest.raises(UnusableRecordError, match=r"^archive/runs/old\.json in fleet_state: "):
        archived(RunStore(*folders))

    assert folders[0].read("old")


@pytest.mark.parametrize("location", ["directory", "bucket"])
def test_a_change_moves_a_run_back_from_the_archive(request, tmp_path, location):
    fleet_state, api = str(tmp_path), {}
    if location == "bucket":
        fleet_state, api = "gs://fleet/archiving", request.getfixturevalue("bucket_api")
    store = RunStore.of(fleet_state, api)
    record_store(fleet_state, api).put("old", 0, record_fields("old", **OVER))

    assert archived(store) == ["old"]
    changed = store.change("old", 7, {"wanted": "running"}, Event(EventKind.LAUNCHED))
    assert (changed.wanted, changed.generation) == ("running", 8)
    assert store.read_all().usable["old"] == changed
    # After the run has finished again, the archive holds its new record.
    finished_again = store.change("old", 8, {"wanted": "stopped", "wanted_until": None})
    later = time.time() + ARCHIVE_AFTER_S + 60
    assert store.archive_finished([finished_again], later) == ["old"]
    assert store.read("old") == finished_again


def test_a_run_that_changes_during_archiving_is_not_archived(folders):
    store = RunStore(*folders)
    folders[0].put("old", 0, record_fields("old", **OVER))
    records = store.read_all().usable
    changed = store.change("old", 7, {"wanted": "running"}, Event(EventKind.LAUNCHED))

    assert store.archive_finished(records.values(), NOW) == []
    assert store.read("old") == changed


class SlowFolder(RecordFolder):
    """Store in which each read of a record takes ``seconds`` of simulated time.

    Reads in different threads overlap, so ``elapsed`` is the time of the thread with most reads.
    """

    def __init__(self, folder: str, seconds: float) -> None:
        super().__init__(folder)
        self._seconds, self._elapsed, self._lock = seconds, {}, threading.Lock()

    def read(self, run):
        time.sleep(0.0005)  # give other threads time to read, too
        with self._lock:
            thread_id = threading.get_ident()
            self._elapsed[thread_id] = self._elapsed.get(thread_id, 0.0) + self._seconds
        return super().read(run)

    def elapsed(self) -> float:
        return max(self._elapsed.values(), default=0.0)


def test_many_records_in_a_slow_bucket_do_not_prevent_a_restart(tmp_path):
    controller = Controller(tmp_path / "fleet", keep_release(tmp_path / "kept"))
    slow = SlowFolder(str(controller.fleet_state), 1.0)
    runs = controller.fleet_state / "runs"
    runs.mkdir(parents=True)
    for number in range(100):
        record = record_fields(f"old{number}", wanted="done")
        (runs / f"old{number}.json").write_text(json.dumps(record))
    controller.record_launch()
    began = controller.now
    answers = {"runs": [running(age=1e5)]}

    outcomes = controller.pass_once(
        controller.snapshot({"pod-w0": answers}),
        store=RunStore(slow, RecordFolder(str(tmp_path / "archive"))),
        clock=lambda: began + slow.elapsed(),
    )

    assert [outcome.action for outcome in outcomes if outcome.run == "mine"] == [Action.RESTART]
