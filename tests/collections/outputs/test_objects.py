"""Stored output in a directory and in a bucket (of a GCS emulator), with one interface."""

import gzip
import os
from unittest.mock import Mock

import pytest
import requests
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import (
    Bucket,
    StoredObject,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.output_stream import (
    SEGMENT_BYTES,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs import objects
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.objects import (
    OutputBucket,
    OutputDirectory,
    OutputError,
    open_store,
    readable,
    trim,
)

from harness.emulated_storage import BUCKET, put_object
from harness.scripted_api import error
from harness.stored_output import QUICK, attempt, content_of, in_bucket, in_directory

OBJECTS = attempt(log=b"one\ntwo\n", metrics=b"{}\n")


def test_a_run_has_the_same_objects_in_a_directory_and_a_bucket(emulator, tmp_path):
    stored = OBJECTS | attempt(run="mine-2")
    directory = in_directory(tmp_path / "outputs", stored)
    bucket = in_bucket(emulator, "same", tmp_path / "cache", stored)
    assert content_of(directory) == content_of(bucket) == OBJECTS
    assert directory.list("another") == bucket.list("another") == []


@pytest.mark.parametrize(
    "name",
    [
        "mine/1/0/../../../etc/passwd",
        "mine/1/0/log/../../exit.json",
        "mine/../other/1/0/exit.json",
        "mine/1/0/log/1",
        "mine/1/0/log/0000000000000",
        "mine/1/0/log/000000000000/x",
        "mine/01/0/exit.json",
        "mine/1/-1/exit.json",
        "mine/1/0/heartbeat.json",
        "mine//1/0/exit.json",
        "mine/1/0/exit.json\n",
        "mine/٣/0/exit.json",
        "other/1/0/exit.json",
    ],
)
def test_an_object_with_an_invalid_name_is_neither_listed_nor_written(tmp_path, name):
    assert readable("", "mine", [StoredObject(name, 1, 1)]) == []
    if not name.startswith("other"):
        with pytest.raises(OutputError, match="name or size is invalid"):
            OutputDirectory(tmp_path).write(name, b"x")
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_is_too_large_or_compressed_is_left_out(emulator, tmp_path):
    assert readable("", "mine", [StoredObject("mine/1/0/log/000000000000", 1 << 30, 1)]) == []
    store = in_bucket(emulator, "large", tmp_path, OBJECTS)
    put_object(emulator, "large/mine/1/0/log/000000131072", b"x" * (SEGMENT_BYTES + 1))
    requests.post(
        f"{emulator}/upload/storage/v1/b/{BUCKET}/o",
        params={
            "uploadType": "media",
            "name": "large/mine/1/0/log/000000262144",
            "contentEncoding": "gzip",
        },
        data=gzip.compress(b"0" * (1 << 24)),
        timeout=10,
    ).raise_for_status()
    assert set(content_of(store)) == set(OBJECTS)


def test_links_and_pipes_in_a_directory_are_left_out(tmp_path):
    store = in_directory(tmp_path / "outputs", OBJECTS)
    log = tmp_path / "outputs/mine/1/0/log"
    os.mkfifo(log / "000000131072")
    (log / "000000262144").symlink_to("/etc/passwd")
    assert set(content_of(store)) == set(OBJECTS)


def test_a_directory_is_readable_only_by_its_user(tmp_path):
    in_directory(tmp_path / "outputs", OBJECTS)
    assert (tmp_path / "outputs").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "outputs/mine/1/0/start.json").stat().st_mode & 0o777 == 0o600


def test_a_directory_or_file_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "mine").write_text("not a directory")
    with pytest.raises(OutputError, match="Not a directory"):
        OutputDirectory(tmp_path).list("mine")

    store = in_directory(tmp_path / "outputs", OBJECTS)
    monkeypatch.setattr(objects.Path, "lstat", Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(OutputError, match="Input/output error"):
        store.list("mine")


def test_more_objects_than_can_be_read_are_an_error(emulator, tmp_path, monkeypatch):
    monkeypatch.setattr(objects, "MAX_OBJECTS", len(OBJECTS) - 1)
    for store in (
        in_directory(tmp_path / "outputs", OBJECTS),
        in_bucket(emulator, "many", tmp_path / "cache", OBJECTS),
    ):
        with pytest.raises(OutputError, match="/mine: more than 2 objects"):
            store.list("mine")


def test_a_segment_that_is_replaced_after_the_listing_has_its_new_content(emulator, tmp_path):
    name = "mine/1/0/log/000000000000"
    store = in_bucket(emulator, "grows", tmp_path, {name: b"one\n"})
    [listed] = store.list("mine")
    put_object(emulator, f"grows/{name}", b"one\ntwo\n")
    assert store.read(listed) == b"one\ntwo\n"


def test_an_object_that_is_removed_after_the_listing_is_empty(emulator, tmp_path):
    name = "mine/1/0/log/000000000000"
    store = in_bucket(emulator, "removed", tmp_path, {name: b"one\n"})
    [listed] = store.list("mine")
    url = f"{emulator}/storage/v1/b/{BUCKET}/o/removed%2Fmine%2F1%2F0%2Flog%2F000000000000"
    requests.delete(url, timeout=10).raise_for_status()
    assert store.read(listed) == b""


def test_a_final_segment_is_read_once_from_the_bucket(emulator, tmp_path):
    name = "mine/1/0/log/000000000000"
    store = in_bucket(emulator, "cached", tmp_path / "cache", {name: b"one\n"})
    [listed] = store.list("mine")
    assert store.read(listed, is_final=True) == b"one\n"
    [cached] = (tmp_path / "cache").iterdir()
    cached.write_bytes(b"from the cache\n")
    assert store.read(listed, is_final=True) == b"from the cache\n"
    cached.unlink()
    assert store.read(listed, is_final=True) == b"one\n"


def test_the_cache_keeps_its_newest_files(tmp_path, monkeypatch):
    monkeypatch.setattr(objects, "CACHE_BYTES", 25)
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    trim(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "older"}
    trim(tmp_path / "missing")


def test_a_bucket_that_refuses_is_asked_once(scripted, tmp_path):
    scripted.handler = lambda asked: error(403, "denied")
    bucket = Bucket("gs://fleet/x", address=scripted.endpoint, retry=QUICK)
    store = OutputBucket(bucket, tmp_path)
    for run in ("one", "two"):
        with pytest.raises(OutputError, match="denied"):
            store.list(run)
    assert len(scripted.asked) == 1


def test_a_location_that_cannot_be_opened_is_an_error(tmp_path):
    with pytest.raises(OutputError, match="this cloud has no Cloud Storage"):
        open_store(
            "gs://b/runs", {"project": "local-fleet", "endpoint": "http://127.0.0.1:1"}, tmp_path
        )
    with pytest.raises(OutputError, match="invalid run name"):
        OutputDirectory(tmp_path).list("../x")
