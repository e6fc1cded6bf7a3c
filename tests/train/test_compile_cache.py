"""Copies of compiled programs in a bucket; in most tests, a directory replaces the bucket."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from harness.trainer_processes import Attempt
from tests.train.bucket import NAME
from train.run.compile_cache import SETTLE_SECONDS, Programs
from train.storage import open_filesystem

OVERRIDES = ["sample.length=0", "steps=1000000"]


def write(folder: Path, name: str, content: bytes = b"a program", age: float = 60) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    os.utime(folder / name, (time.time() - age,) * 2)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_download_makes_the_cache_equal_to_the_bucket(tmp_path: Path, there: Path):
    write(there, "update-cache", b"of the step")
    write(there, "init-cache", b"of the first state")
    write(there, "eval-cache", b"of an evaluation")
    write(tmp_path / "here", "update-cache", b"of the step")
    write(tmp_path / "here", "init-cache", b"cut sh")
    write(tmp_path / "here", "never-uploaded-cache", b"perhaps cut short")
    (tmp_path / "here/xla_gpu_per_fusion_autotune_cache_dir").mkdir()
    Programs(tmp_path / "here", str(there)).download()
    assert contents(tmp_path / "here") == contents(there)


def test_a_new_program_is_uploaded_only_when_complete(tmp_path: Path, there: Path):
    programs = Programs(tmp_path / "here", str(there))
    programs.download()
    write(tmp_path / "here", "update-cache", b"a pro", age=0)
    programs.upload()
    assert contents(there) == {}
    write(tmp_path / "here", "update-cache", b"a program", age=SETTLE_SECONDS + 1)
    programs.upload()
    assert contents(there) == {"update-cache": b"a program"}


def test_an_unreachable_bucket_causes_a_warning_and_does_not_stop_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    programs = Programs(tmp_path / "here", str(tmp_path / "there"))

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("no route to the bucket")

    monkeypatch.setattr(programs._fs, "glob", away, raising=True)
    programs.download()
    assert "so programs are compiled again: ConnectionError: no route" in caplog.text


def test_a_run_on_new_disks_does_not_compile_its_step_again(
    launch: Callable[..., Attempt], tmp_path: Path, bucket: dict[str, str]
):
    checkpoints = f"gs://{NAME}/runs/again"
    filesystem, root = open_filesystem(f"{checkpoints}/compiled")

    def updates(paths: Iterable[str]) -> set[str]:
        names = (path.rpartition("/")[2] for path in paths)
        return {name for name in names if name.startswith("jit_update")}

    def attempt(directory: str) -> Attempt:
        own = {"TPUFLEET_CHECKPOINTS": checkpoints}
        return launch(tmp_path / directory, OVERRIDES, environment=bucket | own)

    first = attempt("first")
    first.wait_for_progress()
    first.wait_for(lambda: len(updates(filesystem.find(root))) == 1)  # JAX writes in process 0 only
    first.kill()
    second = attempt("second")
    second.wait_for_progress()
    assert second.logs().count("compiled programs from gs://") == 2
    for process in ("w0", "w1"):
        cached = contents(tmp_path / "second" / process / "compiled")
        assert updates(cached) == updates(filesystem.find(root))
    second.kill()
