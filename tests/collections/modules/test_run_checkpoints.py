"""Before a start the checkpoint place is written to, as the trainer will; and it must outlive the
TPU."""

import socket

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_checkpoints import (
    bucket_trouble,
    dies_with_tpu,
    trouble,
)

from harness.emulated_storage import emulated_storage


@pytest.fixture(scope="module")
def emulator():
    with emulated_storage() as address:
        yield address


def test_a_writable_bucket_passes_and_the_probe_is_removed(emulator):
    assert trouble("gs://fleet/a/b", {"STORAGE_EMULATOR_HOST": emulator}) is None
    assert Bucket("gs://fleet", address=emulator).names() == []


def test_a_bucket_that_is_not_there_is_named_with_what_it_answered(emulator):
    why = trouble("gs://nowhere/a", {"STORAGE_EMULATOR_HOST": emulator})

    assert why.startswith("gs://nowhere/a: this worker can't write checkpoints there (HTTP 404")


def test_a_bucket_that_does_not_answer_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    assert "Connection refused" in trouble("gs://fleet/a", {"STORAGE_EMULATOR_HOST": address})


def test_a_worker_without_a_service_account_is_reported():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"

    assert "(Connection refused)" in bucket_trouble("gs://fleet/a", {}, nobody)


def test_a_place_that_is_neither_directory_nor_bucket_is_refused():
    assert "s3://fleet: checkpoints need a directory or a bucket" in trouble("s3://fleet", {})


def test_a_directory_of_the_workers_own_disk_dies_with_it(tmp_path):
    assert "own disk" in dies_with_tpu(str(tmp_path / "deep/er"), "10.0.0.2", root=str(tmp_path))


def test_another_disk_and_a_bucket_outlive_it(tmp_path):
    assert dies_with_tpu(str(tmp_path), "10.0.0.2", root="/proc") is None
    assert dies_with_tpu("gs://fleet/a", "10.0.0.2") is None
