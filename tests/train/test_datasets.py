"""Hugging Face datasets as corpora; errors name what is missing."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

# Set before the library is imported, which reads it once: no test may contact the hub.
os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("datasets")

from tests.train.bucket import NAME, emulated_bucket
from train.config import ConfigError, DataConfig, DatasetConfig
from train.corpus import prepare, read_meta, read_tokenizer
from train.texts import CorpusError


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    directory = tmp_path / "feast"
    directory.mkdir()
    lines = [{"line": "first", "n": 1}, {"line": "second", "n": 2}, {"line": None, "n": 3}]
    (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (directory / "test.jsonl").write_text(json.dumps({"line": "third", "n": 4}) + "\n")
    return directory


@pytest.fixture
def cfg(rows: Path, tmp_path: Path) -> DataConfig:
    return DataConfig(
        dataset=DatasetConfig(id=str(rows), text_key="line", cache_dir=str(tmp_path / "cache")),
        heldout=0.0,
        directory=str(tmp_path / "prepared"),
    )


def text_of(cfg: DataConfig) -> str:
    directory = prepare(cfg)
    tokenizer = read_tokenizer(directory, read_meta(directory))
    return tokenizer.decode(np.fromfile(directory / "train.bin", tokenizer.dtype))


def test_rows_of_a_dataset_are_joined_in_order(cfg: DataConfig):
    assert text_of(cfg) == "first\n\nsecond\n\n"


def test_another_split_is_another_text(cfg: DataConfig):
    assert text_of(replace(cfg, dataset=replace(cfg.dataset, split="test"))) == "third"


def test_a_slice_of_a_split_selects_its_rows(cfg: DataConfig):
    assert text_of(replace(cfg, dataset=replace(cfg.dataset, split="train[:1]"))) == "first"


def test_downloads_are_stored_in_cache_dir(cfg: DataConfig, tmp_path: Path):
    prepare(cfg)
    assert list((tmp_path / "cache").rglob("*.arrow"))


def test_a_changed_dataset_is_another_corpus(cfg: DataConfig, rows: Path):
    before = prepare(cfg)
    (rows / "train.jsonl").write_text(json.dumps({"line": "new", "n": 1}) + "\n")
    assert prepare(cfg) != before
    assert text_of(cfg) == "new"


def test_a_dataset_cached_in_a_bucket_is_read_from_there_the_second_time(cfg: DataConfig):
    import fsspec

    in_bucket = replace(cfg, dataset=replace(cfg.dataset, cache_dir="memory://cache"))
    assert text_of(in_bucket) == "first\n\nsecond\n\n"
    files = fsspec.filesystem("memory").glob("/cache/*/*train*.parquet")
    assert len(files) == 1
    again = replace(in_bucket, heldout=0.4)
    assert text_of(again) == "first\n\nse"
    assert fsspec.filesystem("memory").glob("/cache/*/*train*.parquet") == files


def test_cache_dir_may_be_a_gs_bucket(cfg: DataConfig, monkeypatch: pytest.MonkeyPatch):
    with emulated_bucket() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        place = f"gs://{NAME}/cache"
        assert text_of(replace(cfg, dataset=replace(cfg.dataset, cache_dir=place))) == (
            "first\n\nsecond\n\n"
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"text_key": "text"},
            "data.dataset.text_key: {rows} has no column 'text'; it has line, n",
        ),
        ({"split": "valid"}, "data.dataset.split: {rows} has no 'valid'; it has train, test"),
        ({"name": "large"}, "data.dataset: {rows}: ValueError: BuilderConfig 'large' not found"),
        ({"id": "./nowhere"}, "data.dataset.id: ./nowhere is neither a directory"),
        (
            {"cache_dir": "memory://cache", "split": "train[:1]"},
            "data.dataset.split: must be the name of a split if cache_dir is a bucket",
        ),
    ],
)
def test_a_missing_part_of_a_dataset_is_named_with_the_available_ones(
    cfg: DataConfig, rows: Path, changes: dict, said: str
):
    with pytest.raises(ConfigError) as error:
        prepare(replace(cfg, dataset=replace(cfg.dataset, **changes)))
    assert said.format(rows=rows) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_failed_download_of_a_dataset_is_not_a_config_error(cfg: DataConfig):
    with pytest.raises(
        CorpusError, match=r"^data\.dataset\.id: someone/something cannot be loaded"
    ):
        prepare(replace(cfg, dataset=replace(cfg.dataset, id="someone/something")))


def test_a_missing_datasets_package_is_reported_with_the_fix(
    cfg: DataConfig, monkeypatch: pytest.MonkeyPatch
):
    without: Callable[[str], None] = lambda name: None  # noqa: E731
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setattr("importlib.util.find_spec", without)
    with pytest.raises(ConfigError, match=r"needs the package datasets.* set jax_lock"):
        prepare(cfg)
