"""Copies of prepared corpora in a bucket; in most tests, a directory replaces the bucket."""

import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.train.bucket import NAME
from train.core.config import DataConfig
from train.data import corpus, corpus_cache
from train.data.corpus import prepare
from train.data.corpus_cache import CorpusCache, fetched, prepared
from train.run.contract import Contract
from train.storage import open_filesystem


@pytest.fixture
def cfg(tmp_path: Path) -> DataConfig:
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 500)
    return DataConfig(text=str(tmp_path / "text.txt"), directory=str(tmp_path / "here"))


@pytest.fixture
def prepared_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the corpora that the test has prepared, without those that it downloaded."""
    names: list[str] = []
    write = corpus._write

    def record_name(directory, text, *others):
        names.append(text.name)
        write(directory, text, *others)

    monkeypatch.setattr(corpus, "_write", record_name)
    return names


@pytest.fixture
def uploaded(tmp_path: Path, cfg: DataConfig, prepared_names: list[str]) -> Path:
    """A corpus that a worker uploaded; its local copy is gone."""
    bucket = tmp_path / "there"
    directory = prepare(cfg)
    (bucket / directory.name).mkdir(parents=True)
    CorpusCache(str(bucket)).upload(directory)
    shutil.copytree(directory, tmp_path / "gone")
    shutil.rmtree(directory)
    prepared_names.clear()
    return bucket / directory.name


def upload_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == corpus_cache.THREAD_NAME]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_corpus_damaged_in_the_bucket_is_prepared_again_with_a_warning(
    tmp_path, cfg, uploaded, prepared_names, caplog
):
    tokens = (uploaded / "train.bin").read_bytes()
    (uploaded / "train.bin").write_bytes(bytes([tokens[0] ^ 1]) + tokens[1:])
    cache = CorpusCache(str(uploaded.parent))
    directory = prepare(cfg, cache.fetch)
    assert contents(directory) == contents(tmp_path / "gone")
    assert prepared_names == ["text"]
    cache.upload(directory)
    assert contents(uploaded) == contents(tmp_path / "gone")
    assert (
        "cannot be downloaded, so it is prepared again: ValueError: its fingerprint differs"
        in caplog.text
    )


def test_each_corpus_damaged_in_the_bucket_is_replaced(tmp_path, cfg, uploaded):
    (tmp_path / "other.txt").write_text("All the world's a stage. " * 500)
    other = prepare(replace(cfg, text=str(tmp_path / "other.txt")))
    cache = CorpusCache(str(uploaded.parent))
    cache.upload(other)
    other.rename(tmp_path / "other")
    (uploaded / "train.bin").write_bytes(b"damaged")
    prepare(cfg, cache.fetch)
    prepare(replace(cfg, text=str(tmp_path / "other.txt")), cache.fetch)
    directory = prepare(cfg)
    cache.upload(directory)
    assert contents(uploaded) == contents(tmp_path / "gone")
    # Other workers may have links to the old file, so it is not overwritten.
    assert (uploaded / "train.bin").samefile(directory / "train.bin")


def test_a_process_that_only_reads_a_run_downloads_its_corpus(
    tmp_path, cfg, uploaded, prepared_names
):
    contract = Contract("first", tmp_path, uploaded.parent.rename(tmp_path / "corpus").parent)
    [directory] = fetched(cfg, contract)
    assert contents(directory) == contents(tmp_path / "gone")
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    assert prepared_names == []


def test_an_incomplete_upload_is_ignored_and_completed(tmp_path, cfg, uploaded, prepared_names):
    (uploaded / "meta.json").unlink()
    (uploaded / "train.bin").unlink()
    cache = CorpusCache(str(uploaded.parent))
    directory = prepare(cfg, cache.fetch)
    assert prepared_names == ["text"]
    cache.upload(directory)
    assert contents(uploaded) == contents(tmp_path / "gone")


def test_meta_json_is_uploaded_last(cfg, tmp_path, monkeypatch):
    names: list[str] = []
    monkeypatch.setattr(CorpusCache, "_put", lambda _, fs, path, target: names.append(path.name))
    CorpusCache(str(tmp_path / "there")).upload(prepare(cfg))
    assert names.index("meta.json") == len(names) - 1 > 0


def test_a_corpus_damaged_locally_is_not_uploaded(cfg, tmp_path, caplog):
    directory = prepare(cfg)
    (directory / "train.bin").write_bytes(b"fi")
    CorpusCache(str(tmp_path / "there")).upload(directory)
    assert not (tmp_path / "there").exists()
    assert "train.bin: 2 bytes, but" in caplog.text


def test_an_uploaded_corpus_is_not_uploaded_again(cfg, uploaded):
    directory = prepare(cfg, CorpusCache(str(uploaded.parent)).fetch)
    (uploaded / "train.bin").unlink()
    CorpusCache(str(uploaded.parent)).upload(directory)
    assert not (uploaded / "train.bin").exists()


@pytest.fixture
def worker(tmp_path: Path, cfg: DataConfig) -> Callable[[int], list[Path]]:
    """Prepare the corpus on one of three workers, which share only the checkpoint directory."""

    def prepare_on(number: int) -> list[Path]:
        run_contract = Contract("run", tmp_path, tmp_path / "checkpoints", "w0:1", 3, number)
        return prepared(replace(cfg, directory=str(tmp_path / f"w{number}")), run_contract)

    (tmp_path / "checkpoints").mkdir()
    return prepare_on


@pytest.fixture
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_cache, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(corpus_cache, "PULSE_SECONDS", 0.05)


def test_only_process_0_tokenizes_and_the_others_read_its_corpus(
    worker, fast_polling, prepared_names
):
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(worker, number) for number in (1, 2)]
        own = pool.submit(worker, 0).result()
        downloaded = [future.result() for future in others]
    assert prepared_names == ["text"]
    for [directory] in downloaded:
        assert contents(directory) == contents(own[0])
        assert directory != own[0]


def test_other_processes_wait_while_process_0_prepares_the_corpus(
    worker, fast_polling, prepared_names, monkeypatch
):
    monkeypatch.setattr(corpus_cache, "SILENT_SECONDS", 1.0)
    write = corpus._write

    def slowly(*arguments):
        time.sleep(3)
        write(*arguments)

    monkeypatch.setattr(corpus, "_write", slowly)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(worker, 1)
        pool.submit(worker, 0).result()
        other.result()
    assert prepared_names == ["text"]


def test_a_process_prepares_the_corpus_if_process_0_is_silent(
    worker, fast_polling, prepared_names, caplog, monkeypatch
):
    monkeypatch.setattr(corpus_cache, "SILENT_SECONDS", 0.3)
    worker(1)
    assert prepared_names == ["text"]
    assert "so this process prepares text-" in caplog.text


def test_a_single_process_keeps_no_copy_in_a_directory(tmp_path, cfg):
    prepared(cfg, Contract("run", tmp_path, tmp_path / "checkpoints"))
    for thread in upload_threads():
        thread.join(60)
    assert not (tmp_path / "checkpoints").exists()


def test_a_copy_on_the_same_file_system_is_a_hard_link(tmp_path, worker):
    [directory] = worker(0)
    [copy] = (tmp_path / "checkpoints").rglob("train.bin")
    assert copy.samefile(directory / "train.bin")


def test_a_copy_on_another_file_system_has_the_same_files(tmp_path, worker, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    [directory] = worker(0)
    [copy] = (tmp_path / "checkpoints").rglob("train.bin")
    assert contents(copy.parent) == contents(directory)
    assert not copy.samefile(directory / "train.bin")


def test_an_unreachable_bucket_causes_warnings(cfg, prepared_names, caplog, monkeypatch):
    def refuse(location):
        raise ConnectionError("no route")

    monkeypatch.setattr(corpus_cache, "open_filesystem", refuse)
    cache = CorpusCache("gs://gone/corpus")
    cache.upload(prepare(cfg, cache.fetch))
    assert prepared_names == ["text"]
    assert "so it is prepared again: ConnectionError: no route" in caplog.text
    assert "so a new TPU prepares it again: ConnectionError: no route" in caplog.text


def test_a_run_uploads_its_corpus_and_downloads_it_on_new_disks(
    tmp_path, cfg, prepared_names, bucket, caplog, monkeypatch
):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(corpus_cache, "SILENT_SECONDS", 1)
    checkpoints = f"gs://{NAME}/runs/first"
    contracts = [Contract("first", tmp_path, checkpoints, process_id=n) for n in (1, 0, 1)]
    filesystem, root = open_filesystem(f"{checkpoints}/corpus")

    [directory] = prepared(cfg, contracts[0])
    assert not upload_threads()  # only process 0 uploads
    prepared(cfg, contracts[1])
    for thread in upload_threads():
        assert thread.daemon  # a run that ends does not wait for the upload
        thread.join(60)
    assert filesystem.exists(f"{root}/{directory.name}/meta.json")
    directory.rename(tmp_path / "gone")
    assert [contents(path) for path in prepared(cfg, contracts[2])] == [contents(tmp_path / "gone")]
    assert prepared_names == ["text"]
    assert f"downloaded the prepared corpus from {checkpoints}/corpus" in caplog.text
