"""The configs in docs/data.md give batches, and ``prepare`` prints what the page shows."""

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.trainer_processes import PROJECT, clean_environment
from tests.train.bucket import NAME
from train.core.config import build
from train.core.data import Corpus
from train.data import tokens
from train.data.corpus import prepare_all
from train.data.files import download, find
from train.data.texts import CorpusError
from train.storage import UnavailableError, open_filesystem

PAGE = (PROJECT / "docs" / "data.md").read_text()
CONFIGS = [
    yaml.safe_load(block)
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    if "roneneldan" not in block  # skip the config that needs the Hugging Face hub
]
TALKS = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1]  # type: ignore[index]


@pytest.fixture
def page_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a new directory with the files that docs/data.md names; return the directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    for i in range(2):
        (tmp_path / "books" / f"{i}.txt").write_text("The king is come to a feast.\n" * 35)
    lines = (
        json.dumps({"text": f"Article {i}: the king is come. " * (1 + i % 5)}) for i in range(80)
    )
    (tmp_path / "articles.jsonl").write_text("\n".join(lines))
    (tmp_path / "talks.jsonl").write_text(TALKS * 40)
    (tmp_path / "model").mkdir()
    definition = tokens.train_bpe([PAGE], 512)
    (tmp_path / "model" / "tokenizer.json").write_bytes(definition)
    return tmp_path


def test_the_page_has_configs():
    assert len(CONFIGS) >= 5


@pytest.mark.parametrize("tree", CONFIGS, ids=range(len(CONFIGS)))
def test_a_config_of_the_page_gives_batches(
    page_directory: Path, tree: dict, bucket: dict[str, str]
):
    files, root = open_filesystem(f"gs://{NAME}")
    files.put_file("articles.jsonl", f"{root}/articles/1.jsonl")
    files.put_file("model/tokenizer.json", f"{root}/model/tokenizer.json")
    tree = yaml.safe_load(yaml.safe_dump(tree).replace("gs://my-bucket", f"gs://{NAME}"))
    tree["data"]["directory"] = str(page_directory / "data")
    cfg = build(tree)
    corpus = Corpus(prepare_all(cfg.data), cfg)
    assert corpus.rows(0).shape[-1] == cfg.model.context + 1
    assert cfg.data.is_packed == (corpus.rows(0).ndim == 3)


def test_prepare_prints_what_the_page_shows(page_directory: Path):
    (page_directory / "my.yml").write_text(yaml.safe_dump(CONFIGS[0]))
    result = subprocess.run(
        [sys.executable, "-m", "train", "prepare", "my.yml", "data.directory=data"],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=True,
    )
    expected = re.search(r"…/(data/.*)", PAGE)[1]  # type: ignore[index]
    assert re.sub("[0-9a-f]{16}", "N", result.stdout.strip()) == re.sub(
        "[0-9a-f]{16}", "N", expected
    )


def test_a_changed_object_changes_the_corpus(page_directory: Path, bucket: dict[str, str]):
    files, root = open_filesystem(f"gs://{NAME}")
    data = {"text": f"gs://{NAME}/t/*.jsonl", "directory": str(page_directory / "data")}
    files.put_file("articles.jsonl", f"{root}/t/a.jsonl")
    first = prepare_all(build({"data": data}).data)
    assert prepare_all(build({"data": data}).data) == first
    local = {
        "text": str(page_directory / "articles.jsonl"),
        "directory": str(page_directory / "data"),
    }
    [copied] = prepare_all(build({"data": local}).data)
    assert (copied / "train.bin").read_bytes() == (first[0] / "train.bin").read_bytes()
    shutil.copy("talks.jsonl", "articles.jsonl")
    files.pipe_file(f"{root}/t/a.jsonl", b'{"text": "other"}')
    assert prepare_all(build({"data": data}).data) != first


@pytest.mark.parametrize(
    ("name", "error"),
    [("a.jsonl", OSError("connection reset")), ("a.txt", ValueError("status 503"))],
)
def test_a_bucket_error_names_the_object_and_leaves_no_partial_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
):
    class Bucket:
        def glob(self, path: str, detail: bool) -> dict:
            return {path: {"type": "file", "size": 9, "crc32c": "AAAAAA=="}}

        def open(self, path: str, mode: str, **_: str) -> io.IOBase:
            raise error

    monkeypatch.setattr(
        "train.data.files.open_filesystem", lambda location: (Bucket(), location[5:])
    )
    cfg = build({"data": {"text": f"gs://gone/{name}", "directory": str(tmp_path)}})
    with pytest.raises(CorpusError, match=f"^gs://gone/{name}: cannot be read: .*{error}"):
        prepare_all(cfg.data)
    assert not list(tmp_path.iterdir())


def test_a_bucket_that_cannot_be_listed_is_not_a_config_error(monkeypatch: pytest.MonkeyPatch):
    def refuse(location: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("train.data.files.open_filesystem", refuse)
    with pytest.raises(UnavailableError, match=r"^data\.text: gs://gone/\*: cannot be listed: Co"):
        find("gs://gone/*", "data.text")


def test_a_renamed_file_of_a_bucket_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Bucket:
        def __init__(self, name: str) -> None:
            self.name = name

        def glob(self, path: str, detail: bool) -> dict:
            return {f"b/{self.name}": {"type": "file", "size": 1, "crc32c": "AAAAAA=="}}

        def get(self, source: list[str], targets: list[str]) -> None:
            Path(targets[0]).write_text("x")

    for name in ("final.safetensors", "model.safetensors"):
        bucket = Bucket(name)
        monkeypatch.setattr(
            "train.data.files.open_filesystem",
            lambda location, filesystem=bucket: (filesystem, location),
        )
        copy = download("gs://b", ["*.safetensors"], tmp_path, "init_from")
        assert [path.name for path in copy.iterdir()] == [name]
