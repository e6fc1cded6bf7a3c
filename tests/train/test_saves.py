"""Saves of checkpoints: completion, failures and retention."""

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from harness.trainer_processes import loss_log, read_metrics, train_here
from tests.train.test_checkpoints import names, opened
from train.core.config import CheckpointConfig, Config
from train.run import checkpoint, contract
from train.run.checkpoint import (
    MANIFEST,
    ORBAX_METADATA,
    Checkpoints,
)
from train.run.metrics import InFlight, Metrics


def test_a_step_is_saved_only_once(tmp_path: Path):
    checkpoints = opened(tmp_path)
    for wait in (False, True):
        checkpoints.save(10, {"weights": np.arange(8)}, wait)
    assert names(tmp_path) == {"10"}
    assert opened(tmp_path).latest == 10


def test_large_files_have_no_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "CHECKSUM_BYTES", 0)
    opened(tmp_path).save(10, {"weights": np.arange(8)}, wait=True)
    files = json.loads((tmp_path / "10" / MANIFEST).read_text())["files"]
    assert {crc for size, crc in files.values() if size} == {None}
    assert opened(tmp_path).latest == 10


@pytest.mark.parametrize("is_partial", [True, False])
def test_a_save_whose_files_another_attempt_removes_has_no_manifest(
    tmp_path: Path, is_partial: bool
):
    saving = opened(tmp_path)
    files = saving._files

    def removed_first(step: int) -> dict[str, int]:
        if is_partial:
            (tmp_path / str(step) / ORBAX_METADATA).unlink()
        else:
            opened(tmp_path)
        return files(step)

    saving._files = removed_first
    with pytest.raises(FileNotFoundError, match="files disappeared during the save"):
        saving.save(10, {"weights": np.arange(8)}, wait=True)
    assert opened(tmp_path).latest is None


def test_only_the_newest_temporary_checkpoint_is_kept(
    make_config: Callable[..., Config], finished: Path, tmp_path: Path
):
    """With a tiny ``minutes``, temporary checkpoints are saved at steps 9 and 25.

    SaveRequest collects requests every 8 steps, and the save follows 8 steps later.
    """
    checkpoint = {"every": 15, "keep": None, "minutes": 1e-9}
    cfg = make_config(checkpoint=checkpoint, sample={"length": 0})
    assert train_here(cfg, tmp_path) == contract.DONE
    assert names(tmp_path / "checkpoints") == {"15", "30", "40"}
    assert loss_log(tmp_path) == loss_log(finished)


def test_checkpoint_wait_blocks_steps_until_the_save_is_complete(
    make_config: Callable[..., Config], tmp_path: Path
):
    checkpoint = {"every": 9, "keep": None, "wait": True}
    cfg = make_config(steps=36, checkpoint=checkpoint, sample={"length": 0})
    assert train_here(cfg, tmp_path) == contract.DONE
    finished_at = {record["step"]: record["time"] for record in read_metrics(tmp_path)}
    for step in (9, 18, 27):
        manifest = tmp_path / "checkpoints" / str(step) / MANIFEST
        assert manifest.stat().st_mtime < finished_at[step + 1]


def test_a_failure_to_remove_old_checkpoints_causes_a_warning(
    finished_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    def refuse(*_: Any) -> None:
        raise OSError("the bucket is unreachable")

    monkeypatch.setattr(Checkpoints, "_prune", refuse)
    assert train_here(finished_config, tmp_path) == contract.DONE
    assert names(tmp_path / "checkpoints") == {"10", "20", "30", "40"}
    assert "old checkpoints cannot be removed: OSError: the bucket is unreachable" in caplog.text


def test_a_checkpoint_that_was_removed_only_partly_does_not_look_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(every=10, keep=1), {}, "alone")
    remove = checkpoints._fs.rm

    def interrupted(path: str, recursive: bool = False) -> None:
        if recursive:
            raise OSError("the bucket is unreachable")
        remove(path)

    monkeypatch.setattr(checkpoints._fs, "rm", interrupted)
    for step in (10, 20):
        checkpoints.save(step, {"weights": np.arange(8)}, wait=True)

    assert names(tmp_path) == {"10", "20"}
    assert [step for step in names(tmp_path) if (tmp_path / step / MANIFEST).exists()] == ["20"]


def test_remains_of_a_save_are_removed_and_a_checkpoint_with_a_damaged_manifest_stays(
    tmp_path: Path,
):
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(every=10, keep=None), {}, "alone")
    for step in ("10", "20"):
        (tmp_path / step).mkdir()
    (tmp_path / "20" / MANIFEST).write_text("{}")
    checkpoints.save(30, {"weights": np.arange(8)}, wait=True)
    assert names(tmp_path) == {"20", "30"}


def test_a_later_save_of_another_attempt_stays(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(every=10, keep=1), {}, "alone")
    (tmp_path / "30").mkdir()
    for step in (10, 20):
        checkpoints.save(step, {"weights": np.arange(8)}, wait=True)
    assert names(tmp_path) == {"20", "30"}


def test_only_process_0_completes_a_save_or_removes_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail() -> None:
        raise OSError("the bucket is unreachable")

    checkpoints, calls = opened(tmp_path), []
    for name in ("_complete", "_remove_remains"):
        monkeypatch.setattr(checkpoints, name, partial(lambda *call: calls.append(call), name))
    for process in (1, 0):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        checkpoints._finish(10, SimpleNamespace(result=lambda: None))
        with pytest.raises(OSError, match="unreachable"):
            checkpoints._finish(20, SimpleNamespace(result=fail))
        calls.append(process)
    assert calls == [1, ("_complete", 10), ("_remove_remains", 20), 0]


def fail_to_finish(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    crcs = Checkpoints._crcs

    def failing(self: Checkpoints, step: int, files: Iterable[str]) -> dict[str, int]:
        if step in steps:
            raise OSError("the bucket is unreachable")
        return crcs(self, step, files)

    monkeypatch.setattr(Checkpoints, "_crcs", failing)


def test_after_a_failed_save_the_next_one_is_attempted(
    finished_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    fail_to_finish(monkeypatch, {10})
    assert train_here(finished_config, tmp_path) == contract.DONE
    assert opened(tmp_path / "checkpoints").latest == 40
    assert "/10: could not be saved: OSError: the bucket is unreachable" in caplog.text


@pytest.mark.parametrize(("failing", "saved"), [({10, 20}, set()), ({40}, {"20", "30"})])
def test_two_failed_saves_in_a_row_or_a_failed_last_save_end_the_run(
    finished_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: set[int],
    saved: set[str],
):
    fail_to_finish(monkeypatch, failing)
    with pytest.raises(OSError, match="the bucket is unreachable"):
        train_here(finished_config, tmp_path)
    assert names(tmp_path / "checkpoints") == saved


@pytest.mark.parametrize("fault", ["incomplete", "complete", "unknown"])
def test_a_failed_save_is_removed_unless_it_may_have_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
):
    checkpoints = opened(tmp_path)
    write, info = checkpoints._write, checkpoints._fs.info

    def failing_info(path: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
        if fault == "unknown" and os.fspath(path).endswith(MANIFEST):
            raise OSError(errno.EIO, "Input/output error")
        return info(path, **options)

    def failing(name: str, text: str) -> None:
        if fault != "incomplete":
            write(name, text)
        (tmp_path / "10.orbax-checkpoint-tmp-1").mkdir()
        (tmp_path / "100.orbax-checkpoint-tmp").mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "_write", failing)
    monkeypatch.setattr(checkpoints._fs, "info", failing_info)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(10, {"weights": np.arange(8)}, wait=True)
    remaining = set() if fault == "incomplete" else {"10"}
    assert names(tmp_path) == {"100.orbax-checkpoint-tmp"} | remaining


def test_a_save_whose_files_another_attempt_removed_leaves_that_attempts_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checkpoints = opened(tmp_path)
    complete = checkpoints._complete

    def removed(step: int) -> None:
        shutil.rmtree(tmp_path / str(step))
        (tmp_path / f"{step}.orbax-checkpoint-tmp").mkdir()
        complete(step)

    monkeypatch.setattr(checkpoints, "_complete", removed)
    with pytest.raises(FileNotFoundError, match="Another attempt"):
        checkpoints.save(10, {"weights": np.arange(8)}, wait=True)
    assert names(tmp_path) == {"10.orbax-checkpoint-tmp"}


def test_a_diverged_run_whose_last_save_failed_ends_as_diverged(
    finished_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    finished = InFlight.finished

    def diverging(self: InFlight, wait: bool = False) -> Iterator[Metrics]:
        for metrics in finished(self, wait):
            yield replace(metrics, loss=math.nan) if metrics.step == 15 else metrics

    monkeypatch.setattr(InFlight, "finished", diverging)
    fail_to_finish(monkeypatch, {10})
    assert train_here(finished_config, tmp_path) == contract.NOT_A_NUMBER
    assert json.loads((tmp_path / "heartbeat.json").read_text())["state"] == "nan"
    assert "the last save failed: OSError: the bucket is unreachable" in caplog.text
