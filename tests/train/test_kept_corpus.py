"""A prepared corpus outlives a TPU's disks, by the bucket; to try, by a directory."""

import logging
import threading
from pathlib import Path

import pytest

from tests.train.bucket import NAME, emulated_bucket
from train import corpus, kept_corpus
from train.config import DataConfig
from train.contract import Contract, files_at
from train.corpus import prepare
from train.kept_corpus import Kept, prepared


@pytest.fixture
def cfg(tmp_path: Path) -> DataConfig:
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 500)
    return DataConfig(text=str(tmp_path / "text.txt"), directory=str(tmp_path / "here"))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The corpora that were really prepared, not had from elsewhere."""
    names: list[str] = []
    write = corpus._write

    def noted(directory, text, *others):
        names.append(text.name)
        write(directory, text, *others)

    monkeypatch.setattr(corpus, "_write", noted)
    return names


@pytest.fixture
def there(tmp_path: Path, cfg: DataConfig, written: list[str]) -> Path:
    """Where a worker has kept its corpus; the worker's own is gone."""
    place = tmp_path / "there"
    directory = prepare(cfg)
    (place / directory.name).mkdir(parents=True)
    Kept(str(place)).keep(directory)
    directory.rename(tmp_path / "gone")
    written.clear()
    return place / directory.name


def sending() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == kept_corpus.SENDER]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_what_one_worker_kept_another_one_has_without_preparing(tmp_path, cfg, there, written):
    directory = prepare(cfg, Kept(str(there.parent)).fetch)
    assert contents(directory) == contents(tmp_path / "gone")
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    assert written == []


def test_one_that_was_damaged_there_is_prepared_again_and_said(
    tmp_path, cfg, there, written, caplog
):
    tokens = (there / "train.bin").read_bytes()
    (there / "train.bin").write_bytes(bytes([tokens[0] ^ 1]) + tokens[1:])
    kept = Kept(str(there.parent))
    directory = prepare(cfg, kept.fetch)
    assert contents(directory) == contents(tmp_path / "gone")
    assert written == ["text"]
    kept.keep(directory)
    assert contents(there) == contents(tmp_path / "gone")
    assert "not fetched, so it is prepared again: ValueError: it is not what" in caplog.text


def test_half_of_one_is_none_and_is_made_whole(tmp_path, cfg, there, written):
    (there / "meta.json").unlink()
    (there / "train.bin").unlink()
    kept = Kept(str(there.parent))
    directory = prepare(cfg, kept.fetch)
    assert written == ["text"]
    kept.keep(directory)
    assert contents(there) == contents(tmp_path / "gone")


def test_one_that_is_damaged_here_is_not_sent(cfg, tmp_path, caplog):
    directory = prepare(cfg)
    (directory / "train.bin").write_bytes(b"fi")
    Kept(str(tmp_path / "there")).keep(directory)
    assert not (tmp_path / "there").exists()
    assert "train.bin: 2 bytes where" in caplog.text


def test_what_is_there_is_not_sent_again(cfg, there):
    directory = prepare(cfg, Kept(str(there.parent)).fetch)
    (there / "train.bin").unlink()
    Kept(str(there.parent)).keep(directory)
    assert not (there / "train.bin").exists()


def test_a_big_one_is_not_kept(tmp_path, cfg, monkeypatch):
    monkeypatch.setattr(kept_corpus, "LARGEST_BYTES", 10_000)
    Kept(str(tmp_path / "there")).keep(prepare(cfg))
    assert not (tmp_path / "there").exists()


def test_a_bucket_that_is_away_costs_a_line(cfg, written, caplog, monkeypatch):
    def away(place):
        raise ConnectionError("no route")

    monkeypatch.setattr(kept_corpus, "files_at", away)
    kept = Kept("gs://gone/corpus")
    kept.keep(prepare(cfg, kept.fetch))
    assert written == ["text"]
    assert "not fetched, so it is prepared again: ConnectionError: no route" in caplog.text
    assert "not kept, so a new TPU prepares again: ConnectionError: no route" in caplog.text


def test_a_run_keeps_its_corpus_in_its_bucket_and_has_it_from_there(
    tmp_path, cfg, written, caplog, monkeypatch
):
    caplog.set_level(logging.INFO)
    with emulated_bucket() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        place = f"gs://{NAME}/runs/first"
        contracts = [Contract("first", tmp_path, place, process_id=n) for n in (1, 0, 1)]
        files, root = files_at(f"{place}/corpus")

        directory = prepared(cfg, contracts[0])
        assert not sending()  # process 0 alone does
        prepared(cfg, contracts[1])
        for thread in sending():
            thread.join(60)
        assert files.exists(f"{root}/{directory.name}/meta.json")
        directory.rename(tmp_path / "gone")
        assert contents(prepared(cfg, contracts[2])) == contents(tmp_path / "gone")
    assert written == ["text"]
    assert f"the prepared corpus came from {place}/corpus" in caplog.text
