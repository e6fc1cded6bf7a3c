"""Copies of compiled programs in a bucket; a directory stands in for it."""

import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.trainer_processes import Attempt
from tests.train.bucket import NAME, emulated_bucket
from train.compile_cache import SETTLE_SECONDS, Programs
from train.contract import open_filesystem

WORDS = ["sample.length=0", "steps=1000000"]


PROGRAM = zlib.compress(b"a program" * 100)


def write(folder: Path, name: str, content: bytes = PROGRAM, age: float = 60) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    os.utime(folder / name, (time.time() - age,) * 2)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_programs_of_the_run_are_downloaded_and_local_ones_stay(tmp_path: Path, there: Path):
    mine = zlib.compress(b"mine")
    write(there, "update-cache")
    write(there, "slice-cache")
    write(there, "notes.txt")
    write(tmp_path / "here", "slice-cache", mine)
    Programs(tmp_path / "here", str(there)).fetch()
    assert names(tmp_path / "here") == {"update-cache", "slice-cache"}
    assert (tmp_path / "here/slice-cache").read_bytes() == mine


def test_only_programs_that_the_run_uses_are_uploaded(tmp_path: Path, there: Path):
    programs = Programs(tmp_path / "here", str(there))
    programs.fetch()
    write(tmp_path / "here", "update-cache")
    write(tmp_path / "here", "another-run-s-cache")
    programs.used |= {"update-cache", "gone-cache"}
    programs.upload()
    assert names(there) == {"update-cache"}


def test_an_incomplete_program_is_uploaded_once_it_is_complete(tmp_path: Path, there: Path):
    programs = Programs(tmp_path / "here", str(there))
    programs.fetch()
    programs.used.add("update-cache")
    write(tmp_path / "here", "update-cache", age=0)
    programs.upload()
    write(tmp_path / "here", "update-cache", PROGRAM[:-1])
    programs.upload()
    assert names(there) == set()
    write(tmp_path / "here", "update-cache", age=SETTLE_SECONDS + 1)
    programs.upload()
    assert (there / "update-cache").read_bytes() == PROGRAM


def test_an_incomplete_program_in_the_bucket_is_not_used(tmp_path: Path, there: Path):
    write(there, "update-cache", PROGRAM[:-1])
    write(there, "slice-cache")
    Programs(tmp_path / "here", str(there)).fetch()
    assert names(tmp_path / "here") == {"slice-cache"}


def test_an_unreachable_bucket_is_one_warning_and_does_not_stop_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    programs = Programs(tmp_path / "here", str(tmp_path / "there"))

    def away(_: str) -> list[str]:
        raise ConnectionError("no route to the bucket")

    monkeypatch.setattr(programs._fs, "glob", away, raising=True)
    programs.fetch()
    assert "so programs are compiled again: ConnectionError: no route" in caplog.text


def test_a_run_on_new_disks_does_not_compile_its_step_again(
    launch: Callable[..., Attempt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with emulated_bucket() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        place = f"gs://{NAME}/runs/again"

        def attempt(cache: str) -> Attempt:
            own = {
                "TPUFLEET_CHECKPOINTS": place,
                "JAX_COMPILATION_CACHE_DIR": str(tmp_path / cache),
            }
            return launch(tmp_path, WORDS, environment=environment | own)

        def updates(folder: set[str]) -> set[str]:
            return {name for name in folder if name.startswith("jit_update")}

        files, root = open_filesystem(f"{place}/compiled")

        def kept() -> set[str]:
            return {path.rpartition("/")[2] for path in files.find(root)}

        first = attempt("first")
        first.wait_for_progress()
        first.wait_for(lambda: len(updates(kept())) == 2)  # each process has its own
        first.kill()
        second = attempt("second")
        second.wait_for_progress()
        assert second.logs().count("compiled programs from gs://") == 2
        assert updates(names(tmp_path / "second")) == updates(kept())
        second.kill()
        files.rm(root, recursive=True)  # as for another run that begins where this one was
        third = attempt("second")
        third.wait_for(lambda: len(updates(kept())) == 2)
        third.kill()
