"""Copies of prepared corpora in a bucket; a directory stands in for it."""

import logging
import threading
from pathlib import Path

import pytest

from tests.train.bucket import NAME, emulated_bucket
from train import corpus, corpus_cache
from train.config import DataConfig
from train.contract import Contract, open_filesystem
from train.corpus import prepare
from train.corpus_cache import CorpusCache, prepared


@pytest.fixture
def cfg(tmp_path: Path) -> DataConfig:
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 500)
    return DataConfig(text=str(tmp_path / "text.txt"), directory=str(tmp_path / "here"))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the corpora that were prepared, not downloaded."""
    names: list[str] = []
    write = corpus._write

    def noted(directory, text, *others):
        names.append(text.name)
        write(directory, text, *others)

    monkeypatch.setattr(corpus, "_write", noted)
    return names


@pytest.fixture
def there(tmp_path: Path, cfg: DataConfig, written: list[str]) -> Path:
    """A corpus that a worker uploaded; its local copy is gone."""
    place = tmp_path / "there"
    directory = prepare(cfg)
    (place / directory.name).mkdir(parents=True)
    CorpusCache(str(place)).upload(directory)
    directory.rename(tmp_path / "gone")
    written.clear()
    return place / directory.name


def upload_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == corpus_cache.THREAD_NAME]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_worker_downloads_a_corpus_that_another_uploaded(tmp_path, cfg, there, written):
    directory = prepare(cfg, CorpusCache(str(there.parent)).fetch)
    assert contents(directory) == contents(tmp_path / "gone")
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    assert written == []


def test_a_corpus_damaged_in_the_bucket_is_prepared_again_with_a_warning(
    tmp_path, cfg, there, written, caplog
):
    tokens = (there / "train.bin").read_bytes()
    (there / "train.bin").write_bytes(bytes([tokens[0] ^ 1]) + tokens[1:])
    cache = CorpusCache(str(there.parent))
    directory = prepare(cfg, cache.fetch)
    assert contents(directory) == contents(tmp_path / "gone")
    assert written == ["text"]
    cache.upload(directory)
    assert contents(there) == contents(tmp_path / "gone")
    assert (
        "can't be downloaded, so the corpus is prepared again: ValueError: its fingerprint differs"
        in caplog.text
    )


def test_an_incomplete_upload_is_ignored_and_completed(tmp_path, cfg, there, written):
    (there / "meta.json").unlink()
    (there / "train.bin").unlink()
    cache = CorpusCache(str(there.parent))
    directory = prepare(cfg, cache.fetch)
    assert written == ["text"]
    cache.upload(directory)
    assert contents(there) == contents(tmp_path / "gone")


def test_a_corpus_damaged_locally_is_not_uploaded(cfg, tmp_path, caplog):
    directory = prepare(cfg)
    (directory / "train.bin").write_bytes(b"fi")
    CorpusCache(str(tmp_path / "there")).upload(directory)
    assert not (tmp_path / "there").exists()
    assert "train.bin: 2 bytes, but" in caplog.text


def test_an_uploaded_corpus_is_not_uploaded_again(cfg, there):
    directory = prepare(cfg, CorpusCache(str(there.parent)).fetch)
    (there / "train.bin").unlink()
    CorpusCache(str(there.parent)).upload(directory)
    assert not (there / "train.bin").exists()


def test_a_large_corpus_is_not_uploaded(tmp_path, cfg, monkeypatch):
    monkeypatch.setattr(corpus_cache, "LARGEST_BYTES", 10_000)
    CorpusCache(str(tmp_path / "there")).upload(prepare(cfg))
    assert not (tmp_path / "there").exists()


def test_an_unreachable_bucket_is_one_warning(cfg, written, caplog, monkeypatch):
    def away(place):
        raise ConnectionError("no route")

    monkeypatch.setattr(corpus_cache, "open_filesystem", away)
    cache = CorpusCache("gs://gone/corpus")
    cache.upload(prepare(cfg, cache.fetch))
    assert written == ["text"]
    assert "so the corpus is prepared again: ConnectionError: no route" in caplog.text
    assert "so a new TPU prepares it again: ConnectionError: no route" in caplog.text


def test_a_run_uploads_its_corpus_and_downloads_it_on_new_disks(
    tmp_path, cfg, written, caplog, monkeypatch
):
    caplog.set_level(logging.INFO)
    with emulated_bucket() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        place = f"gs://{NAME}/runs/first"
        contracts = [Contract("first", tmp_path, place, process_id=n) for n in (1, 0, 1)]
        files, root = open_filesystem(f"{place}/corpus")

        directory = prepared(cfg, contracts[0])
        assert not upload_threads()  # process 0 alone does
        prepared(cfg, contracts[1])
        for thread in upload_threads():
            thread.join(60)
        assert files.exists(f"{root}/{directory.name}/meta.json")
        directory.rename(tmp_path / "gone")
        assert contents(prepared(cfg, contracts[2])) == contents(tmp_path / "gone")
    assert written == ["text"]
    assert f"downloaded the prepared corpus from {place}/corpus" in caplog.text
