"""Cached releases: durable when written, verified when used."""

import os
import stat
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.release import (
    MANIFEST,
    ReleaseError,
    dump,
    load,
    release_id,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs import release_cache
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.code_tree import list_code, stage
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.release_cache import (
    cache_lock,
    cache_release,
    local_state_dir,
    verify_release,
)

from tests.collections.modules.test_release_manifest import write_code


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = write_code(tmp_path / "code")
    (folder / "current").symlink_to("train")
    return folder


def staged(code: Path) -> tuple[Path, str]:
    tree = code.with_name("staged")
    return tree, release_id(stage(code, [], tree))


@pytest.fixture
def cached(code: Path) -> Path:
    tree, name = staged(code)
    path = code.with_name("releases") / name
    cache_release(tree, path)
    return path


def become_a_link(path: Path) -> None:
    (path / MAIN).unlink()
    (path / MAIN).symlink_to("/etc/passwd")


def become_another_release(path: Path) -> None:
    (path / MAIN).unlink()
    entries = load((path / MANIFEST).read_bytes())
    (path / MANIFEST).write_text(dump(entry for entry in entries if entry.path != MAIN))


MAIN = "train/main.py"
CHANGES = {
    "a file lost its content": lambda path: (path / MAIN).write_text(""),
    "a file is no longer executable": lambda path: (path / "run.sh").chmod(0o644),
}
DAMAGES = CHANGES | {
    "a file is missing": lambda path: (path / MAIN).unlink(),
    "a file became a link": become_a_link,
    "a file was added": lambda path: (path / "train/more.py").write_text(""),
    "the manifest is missing": lambda path: (path / MANIFEST).unlink(),
    "the manifest is empty": lambda path: (path / MANIFEST).write_text(""),
    "the manifest is no list": lambda path: (path / MANIFEST).write_text("3"),
    "the manifest is another release's": become_another_release,
}


def test_a_cached_release_does_not_change_with_the_code(code, cached):
    (code / "train/main.py").write_text("print('changed')\n")

    verify_release(cached)
    assert list_code(cached) == ["current", "latest", "run.sh", "train/main.py"]
    assert release_id(stage(cached, [], code.with_name("again"))) == cached.name
    assert stat.S_IMODE(cached.parent.stat().st_mode) == 0o700


def test_a_release_that_is_cached_again_counts_as_new(code, cached):
    before = cached.stat()
    os.utime(cached, (1, 1))

    cache_release(code.with_name("staged"), cached)

    assert cached.stat().st_mtime >= before.st_mtime
    assert cached.stat().st_ino == before.st_ino


def test_a_release_that_another_process_cached_meanwhile_is_kept_unless_damaged(
    code, cached, monkeypatch
):
    monkeypatch.setattr(release_cache, "is_cached", lambda path: False)
    monkeypatch.setattr(Path, "exists", lambda path: False)

    cache_release(code.with_name("staged"), cached)
    DAMAGES["a file lost its content"](cached)
    with pytest.raises(ReleaseError, match="is damaged"):
        cache_release(code.with_name("staged"), cached)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_release_is_refused_and_written_again(code, cached, damage):
    damage(cached)

    with pytest.raises(ReleaseError, match=str(cached)):
        verify_release(cached)

    cache_release(code.with_name("staged"), cached)
    verify_release(cached)
    assert [path.name for path in cached.parent.iterdir()] == [cached.name]


@pytest.mark.parametrize("damage", CHANGES.values(), ids=CHANGES)
def test_a_damaged_release_is_not_staged_under_another_name(code, cached, damage):
    damage(cached)

    with pytest.raises(ReleaseError, match="differs from the release's manifest"):
        stage(cached, [], code.with_name("again"))


@pytest.mark.parametrize("name", ["..", "code", "0" * 15, "0" * 17, "A" * 16, "0" * 15 + "\n"])
def test_an_invalid_release_id_is_refused(tmp_path, name):
    with pytest.raises(ReleaseError, match="not a release id"):
        verify_release(tmp_path / name)


def test_a_release_that_is_not_cached_is_an_error(tmp_path):
    with pytest.raises(ReleaseError, match="not on this controller"):
        verify_release(tmp_path / ("0" * 16))


def test_code_that_changes_while_it_is_copied_is_not_cached(code):
    tree, name = staged(code)
    # The staged tree has hard links to the files of the code, so this changes the tree, too.
    (code / "train/main.py").write_text("print('changed')\n")
    releases = code.with_name("releases")

    with pytest.raises(ReleaseError):
        cache_release(tree, releases / name)

    assert list(releases.iterdir()) == []


def test_files_are_synced_to_disk_before_a_release_or_lock_gets_its_name(code, monkeypatch):
    tree, name = staged(code)
    path = code.with_name("releases") / name
    synced: set[int] = set()
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        real_fsync(descriptor)

    def rename(self: Path, target: Path) -> Path:
        synced_before.extend(synced)
        return real_rename(self, target)

    synced_before: list[int] = []
    real_rename = Path.rename
    monkeypatch.setattr("os.fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    cache_release(tree, path)

    files = [path, *(file for file in path.rglob("*") if not file.is_symlink())]
    assert {file.stat().st_ino for file in files} <= set(synced_before)
    assert path.parent.stat().st_ino in synced
    cache_lock(code.parent, b"jax==0.7.0")
    (lock,) = (code.parent / "locks").iterdir()
    assert lock.stat().st_ino in synced


@pytest.mark.parametrize(
    ("fleet_state", "directory"),
    [
        ("/home/me/tpufleet/.tpufleet", Path("/home/me/tpufleet/.tpufleet")),
        ("gs://mine/fleet", Path.home() / ".cache/tpufleet"),
        ("~/fleet", Path.home() / "fleet"),
    ],
)
def test_local_state_is_beside_local_records_or_else_in_the_cache_of_the_user(
    fleet_state, directory
):
    assert local_state_dir(fleet_state) == str(directory)
