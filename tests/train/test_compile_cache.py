"""Copies of compiled programs in a bucket; here, a directory replaces the bucket."""

import os
import time
from pathlib import Path

import pytest

from train.run.compile_cache import SETTLE_SECONDS, Programs


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
    assert "so they are compiled again: ConnectionError: no route" in caplog.text
