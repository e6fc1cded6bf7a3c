"""Stores of run records, in a directory and in a bucket."""

import json
import multiprocessing
import os
import socket
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs import (
    record_store as record_stores,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import EventKind
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.history import Event
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.lease import LEASE_S
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import InvalidRecordError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_error import (
    RecordConflictError,
    RecordError,
    UnusableRecordError,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import (
    RecordBucket,
    RecordFolder,
    RecordStore,
    record_store,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore

from harness.emulated_storage import put_object
from harness.scripted_api import Reply, error
from harness.valid_record import record_fields


@pytest.fixture(params=["directory", "bucket"])
def location(request, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """A ``fleet_state`` in a directory or a bucket, and the ``tpu_api`` with which to access it."""
    if request.param == "directory":
        return str(tmp_path), {}
    return f"gs://fleet/{tmp_path.name}/", request.getfixturevalue("bucket_api")


@pytest.fixture
def store(location) -> RecordStore:
    return record_store(*location)


@pytest.fixture
def runs(location) -> RunStore:
    return RunStore.of(*location)


def test_a_change_keeps_the_other_fields_and_reads_back(store):
    assert (store.read("mine"), store.runs()) == ({}, [])
    store.change("mine", 0, {"wanted": "running", "note": "ä"}, {"kind": "launched"})
    began = time.time()
    changed = store.change("mine", 1, {"wanted": "stopped"}, {"kind": "stopped"})

    assert store.read("mine") == changed
    assert (changed["run"], changed["generation"]) == ("mine", 2)
    assert (changed["wanted"], changed["note"]) == ("stopped", "ä")
    assert [event["kind"] for event in changed["history"]] == ["launched", "stopped"]
    assert began - 1 < changed["history"][1]["time"] < time.time() + 1
    assert round(changed["history"][1]["time"], 3) == changed["history"][1]["time"]
    assert changed["wanted_until"] == changed["history"][1]["time"]
    assert store.change("mine", 2, {}, {})["history"] == changed["history"]


def test_a_change_at_another_generation_is_refused(store):
    store.change("mine", 0, {"wanted": "running"}, {"kind": "launched"})
    record = store.read("mine")

    for generation in (0, 2):
        with pytest.raises(
            RecordConflictError, match="run mine was just changed by another command"
        ):
            store.change("mine", generation, {"wanted": "stopped"}, {"kind": "done"})

    assert store.read("mine") == record


def test_the_history_keeps_the_last_50_events(store):
    for number in range(52):
        record = store.change("mine", number, {}, {"kind": str(number)})

    assert [event["kind"] for event in record["history"]] == [
        str(number) for number in range(2, 52)
    ]


def test_runs_lists_the_runs_that_have_a_record(store):
    for run in ("second", "first.json", "first"):
        store.change(run, 0, {}, {"kind": "launched"})

    assert sorted(store.runs()) == ["first", "first.json", "second"]


def test_other_objects_in_the_bucket_of_the_records_are_not_records(bucket_api):
    for name in ("mine/1/0/exit.json", "notes.txt", "other.json"):
        put_object(bucket_api["storage_endpoint"], f"others/runs/{name}", b"{}")

    assert record_store("gs://fleet/others", bucket_api).runs() == ["other"]


CHANGES = 20


def count_up(store: RecordStore, changes: int = CHANGES) -> None:
    """Increment a record's counter ``changes`` times; retry after a conflict, as controllers do."""
    for _ in range(changes):
        while True:
            record = store.read("mine")
            fields = {"counter": record.get("counter", 0) + 1}
            try:
                store.change("mine", record.get("generation", 0), fields, {"kind": "done"})
                break
            except RecordConflictError:
                continue


def count_up_in_folder(folder: str) -> None:
    count_up(RecordFolder(folder))


def test_two_simultaneous_processes_lose_no_change(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=count_up_in_folder, args=(str(tmp_path),)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0, 0]
    record = RecordFolder(str(tmp_path)).read("mine")
    assert (record["counter"], record["generation"]) == (2 * CHANGES, 2 * CHANGES)


class Hesitant(RecordFolder):
    """A store whose changes wait, between reading and writing, for another change to read too."""

    both_have_read = threading.Barrier(2, timeout=0.5)

    def _load(self, run):
        record = super()._load(run)
        with suppress(threading.BrokenBarrierError):  # the lock makes the other change wait
            self.both_have_read.wait()
        return record


def test_one_of_two_simultaneous_changes_in_a_directory_is_refused(tmp_path):
    def is_accepted(number: int) -> bool:
        try:
            Hesitant(str(tmp_path)).change("mine", 0, {"number": number}, {})
        except RecordConflictError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(is_accepted, range(2))) == [False, True]


def test_two_simultaneous_controllers_lose_no_change_in_a_bucket(bucket_api):
    stores = [record_store("gs://fleet/two", bucket_api) for _ in range(2)]
    threads = [threading.Thread(target=count_up, args=(store, 5)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    record = stores[0].read("mine")
    assert (record["counter"], record["generation"]) == (10, 10)


def test_a_directory_has_one_file_and_one_lock_per_run_that_only_the_owner_can_read(tmp_path):
    RecordFolder(str(tmp_path / "new/state")).change("mine", 0, {"b": 1, "a": "ä"}, {})

    folder = tmp_path / "new/state/runs"
    assert sorted(path.name for path in folder.iterdir()) == [".mine.lock", "mine.json"]
    assert list(json.loads((folder / "mine.json").read_text("utf-8")))[:2] == ["a", "b"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "mine.json").stat().st_mode) == 0o600


def test_a_record_in_a_directory_is_synced_to_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))

    RecordFolder(str(tmp_path)).change("mine", 0, {}, {})

    assert synced == [(tmp_path / "runs/mine.json").stat().st_ino]


def test_a_damaged_record_is_named_and_left_alone(tmp_path):
    path = tmp_path / "runs/mine.json"
    path.parent.mkdir()
    path.write_text('{"wanted":')

    with pytest.raises(UnusableRecordError, match=r"mine\.json is not a JSON object"):
        RecordFolder(str(tmp_path)).change("mine", 0, {}, {"kind": "launched"})

    assert path.read_text() == '{"wanted":'


def test_a_directory_of_records_that_cannot_be_listed_or_written_is_an_error(tmp_path):
    (tmp_path / "runs").write_text("a file")

    with pytest.raises(RecordError, match="can't be listed"):
        RecordFolder(str(tmp_path)).runs()
    with pytest.raises(RecordError, match="set fleet_state"):
        RecordFolder(str(tmp_path)).change("mine", 0, {}, {"kind": "launched"})


@pytest.mark.parametrize(
    ("fleet_state", "error"),
    [
        ("s3://bucket/prefix", "neither a directory nor"),
        ("gs://fleet/state/", r"fleet_state: gs://fleet/state/runs: .* has no Cloud Storage"),
    ],
)
def test_a_fleet_state_that_is_no_directory_and_no_available_bucket_is_refused(fleet_state, error):
    api = {"project": "local-fleet", "endpoint": "http://127.0.0.1:1"}

    with pytest.raises(RecordError, match=error):
        record_store(fleet_state, api)


def test_a_tilde_means_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    RecordFolder("~/fleet").change("mine", 0, {}, {"kind": "launched"})

    assert (tmp_path / "fleet/runs/mine.json").is_file()


def test_a_failed_write_leaves_the_old_record_and_no_other_file(tmp_path):
    store = RecordFolder(str(tmp_path))
    store.change("mine", 0, {"wanted": "running"}, {"kind": "launched"})
    record = store.read("mine")

    with pytest.raises(TypeError):
        store.change("mine", 1, {"odd": object()}, {"kind": "done"})

    assert store.read("mine") == record
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        ".mine.lock",
        "mine.json",
    ]


def test_each_change_in_a_bucket_has_its_own_token(bucket_api):
    store = record_store("gs://fleet/tokens", bucket_api)

    tokens = {store.change("mine", number, {}, {})["change"] for number in range(3)}

    assert len(tokens) == 3
    assert {len(token) for token in tokens} == {16}


def test_a_missing_bucket_is_an_error_and_not_empty(bucket_api):
    store = record_store("gs://nowhere/state", bucket_api)

    for operation in (
        store.runs,
        lambda: store.read("mine"),
        lambda: store.change("mine", 0, {}, {}),
    ):
        with pytest.raises(RecordError, match="nowhere"):
            operation()


def test_the_requests_to_a_bucket_that_hangs_end_before_a_lease_does():
    policy = record_stores.SMALL_OBJECT_RETRY
    assert max(policy.silent_tries, policy.connect_tries) * policy.request_timeout < LEASE_S


def test_a_bucket_that_hangs_is_an_error(monkeypatch):
    policy = replace(record_stores.SMALL_OBJECT_RETRY, request_timeout=0.1, silent_tries=1)
    monkeypatch.setattr(record_stores, "SMALL_OBJECT_RETRY", policy)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{hanging.getsockname()[1]}")
        store = record_store("gs://fleet", {"project": "local-fleet"})

        with pytest.raises(RecordError, match="no answer"):
            store.runs()

        hanging.setblocking(False)
        hanging.accept()
        with pytest.raises(BlockingIOError):
            hanging.accept()  # there was no second try


@pytest.mark.parametrize("text", [b'["a list"]', b"{", b"\xff", b""])
def test_a_record_in_a_bucket_that_is_no_json_object_is_invalid(bucket_api, text):
    store = record_store("gs://fleet/damaged", bucket_api)
    put_object(bucket_api["storage_endpoint"], "damaged/runs/bad.json", text)

    with pytest.raises(
        UnusableRecordError, match=r"gs://fleet/damaged/runs/bad\.json is not a JSON"
    ):
        store.read("bad")
    assert store.runs() == ["bad"]


def test_all_valid_records_are_read_and_invalid_ones_named(store, runs):
    for run in ("first", "second"):
        store.change(run, 0, record_fields(run), {"kind": "launched"})
    store.change("bad", 0, {"wanted": "running"}, {"kind": "done"})

    records = runs.read_all()

    assert sorted(records.usable) == ["first", "second"]
    assert records.usable["second"].run == "second"
    assert [record.name for record in records.unusable] == ["bad"]
    assert "invalid record" in records.unusable[0].error


@pytest.mark.parametrize("run", ["", "../mine", "-e", "a b", "{{ x }}"])
def test_an_invalid_run_name_is_refused_before_reading(runs, run):
    with pytest.raises(InvalidRecordError, match="is not a valid run name"):
        runs.read(run)


def test_only_a_valid_record_is_written(store, runs):
    with pytest.raises(InvalidRecordError, match="release"):
        runs.change("mine", 0, {**record_fields(), "release": "latest"}, Event(EventKind.LAUNCHED))
    assert store.read("mine") == {}
    record = runs.change("mine", 0, record_fields(), Event(EventKind.LAUNCHED))
    assert (record.generation, [event.kind for event in record.history]) == (1, ["launched"])
    with pytest.raises(InvalidRecordError, match="release"):
        runs.change("mine", 1, {"release": "../../etc"})
    assert runs.read("mine") == record
    assert runs.change("mine", 1, {"wanted": "stopped"}).history == record.history
    with pytest.raises(RecordConflictError):
        runs.change("mine", 1, {"wanted": "running"})


def test_put_replaces_only_the_expected_generation(store):
    record = {"generation": 7, "run": "mine", "history": [], "a": 1}

    with pytest.raises(RecordConflictError, match="run mine"):
        store.put("mine", 7, record)
    assert store.read("mine") == {}
    store.put("mine", 0, record)
    for generation in (0, 8):
        with pytest.raises(RecordConflictError, match="run mine"):
            store.put("mine", generation, {})
    assert store.read("mine") == record
    store.put("mine", 7, {**record, "a": 2})
    assert store.read("mine")["a"] == 2


def test_remove_removes_only_the_expected_generation(store):
    store.change("mine", 0, {}, {"kind": "launched"})
    store.change("other", 0, {}, {"kind": "launched"})

    for generation in (0, 2):
        with pytest.raises(RecordConflictError, match="run mine"):
            store.remove("mine", generation)
    assert sorted(store.runs()) == ["mine", "other"]
    store.remove("mine", 1)
    assert store.runs() == ["other"]
    assert store.read("mine") == {}


def test_a_record_in_a_bucket_is_removed_only_as_it_was_read(scripted):
    read = Reply({"generation": 1}, headers=(("x-goog-generation", "7"),))
    scripted.script = [read, error(412, "changed meanwhile")]
    store = RecordBucket(Bucket("gs://fleet/runs", address=scripted.endpoint))

    with pytest.raises(RecordConflictError, match="run mine"):
        store.remove("mine", 1)

    assert scripted.asked[-1].query == "ifGenerationMatch=7"


@pytest.mark.parametrize("end", ["", "/"])
def test_the_archive_is_beside_the_records(tmp_path, end):
    runs = RunStore.of(f"{tmp_path}{end}")
    record = runs.change("mine", 0, record_fields(wanted="done"), Event(EventKind.LAUNCHED))
    later = time.time() + 30 * 86400

    assert runs.archive_finished([record], later) == ["mine"]
    assert (runs.read_all().usable, runs.read("mine")) == ({}, record)
    assert (tmp_path / "archive/runs/mine.json").is_file()
    assert list(runs.read_all(archived=True).usable) == ["mine"]
