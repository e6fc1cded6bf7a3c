"""Hugging Face datasets as corpora; errors name what is missing."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

# No test may contact the hub. The library reads this variable once, when it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("datasets")

from train.data.config import DataConfig, DatasetConfig
from train.data.corpus import prepare, read_meta, read_tokenizer
from train.data.texts import CorpusError
from train.strict import ConfigError


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
        dataset=DatasetConfig(id=str(rows), text_key="line"),
        heldout=0.0,
        directory=str(tmp_path / "prepared"),
    )


def text_of(cfg: DataConfig) -> str:
    directory = prepare(cfg)
    tokenizer = read_tokenizer(directory, read_meta(directory))
    return tokenizer.decode(np.fromfile(directory / "train.bin", tokenizer.dtype))


@pytest.mark.parametrize(
    ("split", "text"),
    [("train", "first\n\nsecond\n\n"), ("test", "third"), ("train[:1]", "first")],
)
def test_rows_of_a_split_or_of_its_slice_are_joined_in_order(
    cfg: DataConfig, split: str, text: str
):
    assert text_of(replace(cfg, dataset=replace(cfg.dataset, split=split))) == text


def test_downloads_are_stored_beside_the_corpora(cfg: DataConfig, tmp_path: Path):
    prepare(cfg)
    assert list((tmp_path / "prepared" / "huggingface").rglob("*.arrow"))


def test_a_changed_dataset_changes_the_corpus(cfg: DataConfig, rows: Path):
    before = prepare(cfg)
    (rows / "train.jsonl").write_text(json.dumps({"line": "new", "n": 1}) + "\n")
    assert prepare(cfg) != before
    assert text_of(cfg) == "new"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_key": "text"}, "{rows} row 0 has no text under the key 'text' (its keys: line, n)"),
        ({"text_key": "n"}, "{rows} row 0 has no text under the key 'n' (its keys: line, n)"),
        ({"split": "valid"}, 'data.dataset: {rows}: ValueError: Unknown split "valid".'),
        ({"name": "large"}, "data.dataset: {rows}: ValueError: BuilderConfig 'large' not found"),
        ({"id": "./nowhere"}, "data.dataset.id: ./nowhere is neither a directory"),
    ],
)
def test_a_missing_part_of_a_dataset_is_reported_with_its_name(
    cfg: DataConfig, rows: Path, changes: dict, message: str
):
    with pytest.raises(ConfigError) as error:
        prepare(replace(cfg, dataset=replace(cfg.dataset, **changes)))
    assert message.format(rows=rows) in str(error.value)
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
    with pytest.raises(ConfigError, match=r"package datasets is not installed"):
        prepare(cfg)


def test_a_dataset_may_be_in_the_home_directory(cfg, rows, monkeypatch):
    monkeypatch.setenv("HOME", str(rows.parent))
    home = replace(cfg, dataset=replace(cfg.dataset, id="~/feast"))
    assert text_of(home) == "first\n\nsecond\n\n"
