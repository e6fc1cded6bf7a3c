"""A temporary failure at the start of a run gives exit code 1, so the watch launches it again."""

import errno
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from train.__main__ import main
from train.data import hub
from train.data.texts import CorpusError
from train.run import contract
from train.run.contract import BAD_CONFIG, CRASHED

REFUSED = [FileNotFoundError("b/model"), PermissionError("b"), OSError("Forbidden: b\nno access")]
OUTAGES = [ConnectionError("no route"), TimeoutError(), OSError(errno.EIO, "Input/output error")]
IN_A_BUCKET = [
    "checkpoint.directory=gs://b/run",
    "data.tokenizer=gs://b/tokenizer.json",
    "data.text=gs://b/*.txt",
    "init_from=gs://b/model",
]


class HttpError(Exception):
    """Stands in for gcsfs.retry.HttpError."""

    def __init__(self, code: int) -> None:
        super().__init__(f"status {code}")
        self.code = code


@pytest.fixture
def start(config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Start a run with overrides, and return its exit code."""
    monkeypatch.setenv("TPUFLEET_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)

    def run(*overrides: str) -> int:
        try:
            return main(["run", str(config_file), *overrides])
        except SystemExit as end:
            return int(end.code or 0)

    monkeypatch.setattr(os, "_exit", sys.exit)
    return run


def failing(err: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> None:
        raise err

    return fail


@pytest.mark.parametrize("word", IN_A_BUCKET)
@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([*REFUSED, HttpError(401)], BAD_CONFIG),
        ([*OUTAGES, HttpError(503), HttpError(429)], CRASHED),
    ],
    ids=["refused", "outage"],
)
def test_a_bucket_error_is_a_config_error_only_if_missing_or_forbidden(
    start: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    word: str,
    errors: list[Exception],
    code: int,
):
    there = fsspec.core.url_to_fs
    for err in errors:
        monkeypatch.setattr(
            fsspec.core,
            "url_to_fs",
            lambda url, err=err, **options: (
                failing(err)() if url.startswith("gs://") else there(url, **options)
            ),
        )
        assert start(word) == code, err
        [line] = [line for line in capsys.readouterr().err.splitlines() if "gs://b" in line]
        assert line.startswith("train: ")


@pytest.mark.parametrize(
    ("err", "code"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), BAD_CONFIG),
        (OSError(errno.ENOSPC, "No space left on device"), CRASHED),
        (OSError(errno.ESTALE, "Stale file handle"), CRASHED),
    ],
)
def test_a_write_error_is_a_config_error_only_if_permission_is_denied(
    start: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    err: OSError,
    code: int,
):
    monkeypatch.setattr(tempfile, "TemporaryFile", failing(err))
    assert start() == code
    assert f"/run: cannot be written: {err.strerror}" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["data.tokenizer=owner/name", "init_from=owner/name"])
def test_an_unreachable_hub_is_not_a_config_error(
    start: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    word: str,
):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    assert hub.is_repository("owner/name")
    away = LocalEntryNotFoundError("the hub cannot be reached")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", failing(away))
    assert start(word) == CRASHED
    assert "owner/name is no file or directory here, and cannot be" in capsys.readouterr().err


def test_the_heartbeat_is_written_while_data_is_prepared(
    start: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "run" / "heartbeat.json"
    seen = set()

    def prepare_slowly(*_: Any) -> None:
        end = time.monotonic() + 20
        while len(seen) < 3 and time.monotonic() < end:
            time.sleep(0.02)
            if file.exists():
                beat = json.loads(file.read_text())
                seen.add((beat["state"], beat["time"]))
        raise CorpusError("no text")

    monkeypatch.setattr("train.__main__.prepared", prepare_slowly)
    monkeypatch.setattr(contract, "STARTING_SECONDS", 0.05, raising=False)
    assert start() == CRASHED
    assert [state for state, _ in seen] == ["starting"] * 3
    assert json.loads(file.read_text())["state"] == "failed"
