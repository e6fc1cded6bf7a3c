"""Hard links to unchanged files of the last release, on the leader and on other workers; damaged
files are not linked."""

import os
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.release import (
    install,
    release_problems,
)
from ansible_collections.tpufleet.core.plugins.modules.release import copy_leader_release

from tests.collections.modules.test_env_copy import serve
from tests.collections.modules.test_release_manifest import put, stage_code, write_code


class Worker:
    """The releases on the leader (``leads``), or on a worker that copies the leader's releases."""

    def __init__(self, folder: Path, leads: bool) -> None:
        self.folder, self.leads = folder, leads
        self.releases = folder / ("leader" if leads else "other")
        self.last: Path | None = None

    def push(self, name: str) -> Path:
        """Install the release of this name and return its directory."""
        last, self.last = self.last, self.releases / name
        lead_last = self.folder / "leader" / last.name if last else None
        put(self.folder / f"staged-{name}", self.folder / "leader", name, lead_last)
        if not self.leads:
            install(self.releases, name, partial(copy_leader_release, name), last)
        return self.last


@pytest.fixture(params=[True, False], ids=["the leader", "another worker"])
def worker(request, tmp_path, monkeypatch):
    serve(tmp_path, {"releases": str(tmp_path / "leader")}, monkeypatch)
    return Worker(tmp_path, leads=request.param)


@pytest.fixture
def code(tmp_path):
    return write_code(tmp_path / "code")


def stage(code: Path) -> str:
    name = stage_code(code, code.parent / "staging")
    (code.parent / "staging").rename(code.parent / f"staged-{name}")
    return name


def change(code: Path) -> str:
    (code / "new.py").write_text("print('new')\n")
    return stage(code)


def inodes(release: Path) -> dict[str, int]:
    return {path.name: path.lstat().st_ino for path in release.rglob("*") if path.is_file()}


def damage(file: Path) -> None:
    """Change a file's content but neither its size nor its time."""
    was = file.stat()
    file.chmod(0o644)
    file.write_text(file.read_text().swapcase())
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    file.chmod(was.st_mode)


def test_unchanged_files_are_linked_to_the_last_release(worker, code):
    first = worker.push(stage(code))
    name = change(code)

    second = worker.push(name)

    assert release_problems(second, name) == []
    assert inodes(second)["main.py"] == inodes(first)["main.py"]
    assert inodes(second)["run.sh"] == inodes(first)["run.sh"]
    assert (second / "new.py").stat().st_nlink == 1


def test_a_damaged_file_of_the_last_release_is_not_linked(worker, code):
    first = worker.push(stage(code))
    damage(first / "train/main.py")
    name = change(code)

    second = worker.push(name)

    assert release_problems(second, name) == []
    assert (first / "train/main.py").read_text() == "PRINT('HELLO')\n"
    assert [path.name for path in worker.releases.glob(".*")] == []


@pytest.mark.parametrize("content", [b'[["train/ma', b'[["train/m\xe4'])
def test_a_damaged_manifest_of_the_last_release_does_not_block_a_push(content, worker, code):
    first = worker.push(stage(code))
    manifest = next(first.glob(".*manifest*"))
    manifest.unlink()
    manifest.write_bytes(content)
    name = change(code)

    assert release_problems(worker.push(name), name) == []


def test_a_file_that_became_executable_is_not_linked_and_the_old_one_stays_as_it_is(worker, code):
    first = worker.push(stage(code))
    (code / "train/main.py").chmod(0o755)
    name = stage(code)

    second = worker.push(name)

    assert inodes(second)["main.py"] != inodes(first)["main.py"]
    assert (first / "train/main.py").stat().st_mode & 0o777 == 0o444
    assert (second / "train/main.py").stat().st_mode & 0o777 == 0o555


def test_a_change_of_mode_alone_leaves_the_old_release_intact(worker, code):
    """File systems store times in steps, so files with different modes may have equal times."""
    (code / "copy.sh").write_text((code / "run.sh").read_text())
    old = stage(code)
    first = worker.push(old)
    for release in {first, worker.folder / "leader" / old}:
        for name in ("copy.sh", "run.sh"):
            os.utime(release / name, ns=(10**18, 10**18))
    (code / "copy.sh").chmod(0o755)
    name = stage(code)

    assert release_problems(worker.push(name), name) == []
    assert release_problems(first, old) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.chmod(0o666),
        pytest.param(
            lambda file: os.chown(file, 12345, -1),
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away"),
        ),
    ],
    ids=["writable", "of another user"],
)
def test_a_file_of_a_release_that_others_may_change_is_not_linked(worker, code, damage):
    first = worker.push(stage(code))
    damage(first / "train/main.py")

    second = worker.push(change(code))

    assert inodes(second)["main.py"] != inodes(first)["main.py"]
    status = (second / "train/main.py").stat()
    assert (status.st_mode & 0o777, status.st_uid) == (0o444, os.geteuid())


def test_a_later_change_of_a_staged_file_does_not_change_the_release(worker, code):
    name = stage(code)
    release = worker.push(name)
    before = inodes(release)
    staged = code.parent / f"staged-{name}/train/main.py"
    staged.write_text("print('later')\n")

    assert staged.stat().st_ino not in before.values()
    assert release_problems(release, name) == []


def swap_files_and_directories(code: Path) -> None:
    (code / "plain").unlink()
    (code / "plain").mkdir()
    (code / "plain/inner.py").write_text("inner\n")
    (code / "folder/inner.py").unlink()
    (code / "folder").rmdir()
    (code / "folder").write_text("a file\n")
    (code / "gone.py").unlink()


def change_a_file_of_equal_length(code: Path) -> None:
    (code / "train/main.py").write_text("PRINT('hello')\n")


@pytest.mark.parametrize("edit", [swap_files_and_directories, change_a_file_of_equal_length])
def test_a_push_of_changed_code_leaves_the_old_release_intact(worker, code, edit):
    (code / "plain").write_text("a file\n")
    (code / "folder").mkdir()
    (code / "folder/inner.py").write_text("inner\n")
    (code / "gone.py").write_text("gone\n")
    old = stage(code)
    first = worker.push(old)
    edit(code)
    name = stage(code)

    assert release_problems(worker.push(name), name) == []
    assert release_problems(first, old) == []
