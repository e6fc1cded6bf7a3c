"""A Hugging Face dataset becomes a corpus like any other; what it lacks is named in one line."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("datasets")

from tests.train.bucket import NAME, emulated_bucket
from train.config import ConfigError, DataConfig, DatasetConfig
from train.corpus import prepare, read_meta, read_tokenizer
from train.texts import CorpusError

# No test asks a hub, not even one that would find nothing there.
os.environ["HF_HUB_OFFLINE"] = "1"


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


def test_the_rows_texts_follow_one_another_in_their_order(cfg: DataConfig):
    assert text_of(cfg) == "first\n\nsecond\n\n"


def test_another_split_is_other_text(cfg: DataConfig):
    assert text_of(replace(cfg, dataset=replace(cfg.dataset, split="test"))) == "third"


def test_a_slice_of_a_split_is_as_datasets_understands_it(cfg: DataConfig):
    assert text_of(replace(cfg, dataset=replace(cfg.dataset, split="train[:1]"))) == "first"


def test_what_is_fetched_is_kept_where_it_is_said(cfg: DataConfig, tmp_path: Path):
    prepare(cfg)
    assert list((tmp_path / "cache").rglob("*.arrow"))


def test_a_changed_dataset_is_another_corpus(cfg: DataConfig, rows: Path):
    before = prepare(cfg)
    (rows / "train.jsonl").write_text(json.dumps({"line": "new", "n": 1}) + "\n")
    assert prepare(cfg) != before
    assert text_of(cfg) == "new"


def test_a_bucket_keeps_the_dataset_and_is_read_from_the_second_time(cfg: DataConfig):
    import fsspec

    in_bucket = replace(cfg, dataset=replace(cfg.dataset, cache_dir="memory://cache"))
    assert text_of(in_bucket) == "first\n\nsecond\n\n"
    files = fsspec.filesystem("memory").glob("/cache/*/*train*.parquet")
    assert len(files) == 1
    again = replace(in_bucket, heldout=0.4)
    assert text_of(again) == "first\n\nse"
    assert fsspec.filesystem("memory").glob("/cache/*/*train*.parquet") == files


def test_the_bucket_may_be_google_s(cfg: DataConfig, monkeypatch: pytest.MonkeyPatch):
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
        ({"id": "./nowhere"}, "data.dataset.id: ./nowhere is no directory"),
        (
            {"cache_dir": "memory://cache", "split": "train[:1]"},
            "data.dataset.split: must be the name of a split where cache_dir is a bucket",
        ),
    ],
)
def test_what_a_dataset_lacks_is_named(cfg: DataConfig, rows: Path, changes: dict, said: str):
    with pytest.raises(ConfigError) as error:
        prepare(replace(cfg, dataset=replace(cfg.dataset, **changes)))
    assert said.format(rows=rows) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_dataset_that_cannot_be_fetched_is_a_failure_not_a_mistake(cfg: DataConfig):
    with pytest.raises(
        CorpusError, match=r"^data\.dataset\.id: someone/something could not be had"
    ):
        prepare(replace(cfg, dataset=replace(cfg.dataset, id="someone/something")))


def test_without_the_package_it_is_said_what_to_add(
    cfg: DataConfig, monkeypatch: pytest.MonkeyPatch
):
    without: Callable[[str], None] = lambda name: None  # noqa: E731
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setattr("importlib.util.find_spec", without)
    with pytest.raises(
        ConfigError, match=r"needs the package datasets.* name that file by jax_lock"
    ):
        prepare(cfg)
