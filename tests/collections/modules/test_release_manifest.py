"""Releases: named by their content, verified file by file, installed completely or not at all."""

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.release import (
    MANIFEST,
    Entry,
    ReleaseError,
    build,
    copy_pushed,
    dump,
    install,
    load,
    release_id,
    release_problems,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.code_tree import list_code, stage
from hypothesis import given, settings
from hypothesis import strategies as st

PART = st.binary(min_size=1, max_size=20).filter(
    lambda part: b"/" not in part and b"\0" not in part and part not in (b".", b"..")
)
NAMES = st.sets(PART, min_size=1, max_size=8)


def write_code(root: Path) -> Path:
    root.mkdir()
    (root / "train").mkdir()
    (root / "train/main.py").write_text("print('hello')\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "latest").symlink_to("train/main.py")
    return root


def stage_code(code: Path, target: Path) -> str:
    return release_id(stage(code, [], target))


def git(folder, *arguments):
    settings = ("user.name=a", "user.email=a@b", "protocol.file.allow=always")
    options = [word for setting in settings for word in ("-c", setting)]
    subprocess.run(["git", "-C", str(folder), *options, *arguments], check=True)


def swap(path: Path) -> Path:
    path.unlink()
    return path


def put(tree: Path, releases: Path, name: str, last: Path | None = None) -> Path:
    install(releases, name, partial(copy_pushed, tree), last)
    return releases / name


def test_the_same_files_in_another_directory_give_the_same_release_id(tmp_path):
    first, second = write_code(tmp_path / "a"), write_code(tmp_path / "b")

    assert release_id(build(first, list_code(first))) == release_id(
        build(second, list_code(second))
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train/main.py").write_text("print('hallo')\n"),
        lambda root: (root / "run.sh").chmod(0o644),
        lambda root: (root / "train/main.py").rename(root / "train/other.py"),
        lambda root: (root / "new").write_text(""),
    ],
    ids=["content", "executable bit", "name", "one more file"],
)
def test_any_change_gives_another_release_id(tmp_path, change):
    code = write_code(tmp_path / "code")
    (code / "latest").unlink()
    before = release_id(build(code, list_code(code)))

    change(code)

    assert release_id(build(code, list_code(code))) != before


@settings(max_examples=30)
@given(names=NAMES)
def test_files_with_any_names_are_staged_and_installed(tmp_path_factory, names):
    root = tmp_path_factory.mktemp("odd")
    code = root / "code"
    code.mkdir()
    for name in names:
        (code / os.fsdecode(name)).write_bytes(name)
    if (code / ".git").exists() or (code / "__pycache__").exists():
        return

    name = stage_code(code, root / "staged")
    put(root / "staged", root / "releases", name)

    assert release_problems(root / "releases" / name, name) == []
    assert {os.fsencode(path.name) for path in (root / "releases" / name).iterdir()} == {
        *names,
        MANIFEST.encode(),
    }


def test_files_that_git_ignores_and_deleted_tracked_files_are_not_part_of_the_code(tmp_path):
    code = write_code(tmp_path / "code")
    git(code, "init", "-q")
    git(code, "add", ".")
    (code / ".gitignore").write_text(".env\n")
    (code / ".env").write_text("TOKEN=1\n")
    (code / "run.sh").unlink()

    assert list_code(code) == [".gitignore", "latest", "train/main.py"]


def test_a_submodule_is_part_of_the_code_and_must_be_initialized(tmp_path):
    for name in ("library", "main"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").touch()
        git(tmp_path / name, "init", "-q")
        git(tmp_path / name, "add", ".")
        git(tmp_path / name, "commit", "-qm", "first")
    git(tmp_path / "main", "submodule", "--quiet", "add", f"{tmp_path}/library", "vendored")
    git(tmp_path / "main", "commit", "-qm", "second")
    (tmp_path / "main/vendored/new.py").touch()
    git(tmp_path, "clone", "-q", "main", "fresh")

    paths = [".gitmodules", "main.py", "vendored/library.py", "vendored/new.py"]
    assert list_code(tmp_path / "main") == paths
    with pytest.raises(ReleaseError, match="the git submodule vendored/ has no files here"):
        list_code(tmp_path / "fresh")
    assert list_code(tmp_path / "fresh", ["main.py"]) == ["main.py"]


def test_a_git_tree_that_git_cannot_list_is_an_error(tmp_path):
    code = write_code(tmp_path / "code")
    (code / ".git").mkdir()

    with pytest.raises(ReleaseError, match="git can't list"):
        list_code(code)


def test_code_paths_select_a_part_of_the_tree(tmp_path):
    assert list_code(write_code(tmp_path / "code"), ["train"]) == ["train/main.py"]


def test_a_code_path_without_files_is_named(tmp_path):
    with pytest.raises(ReleaseError, match="nope of code_paths"):
        list_code(write_code(tmp_path / "code"), ["nope"])


@pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "train/../../secret"])
def test_a_link_out_of_the_tree_is_refused_by_name(tmp_path, target):
    code = write_code(tmp_path / "code")
    (code / "leak").symlink_to(target)

    with pytest.raises(ReleaseError, match="leak is a link to"):
        build(code, list_code(code))


def test_files_of_tpufleet_itself_are_listed_even_if_git_ignores_them(tmp_path):
    code = write_code(tmp_path / "code")
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("code\n")

    assert list_code(code, is_own=True) == ["latest", "run.sh", "train/main.py"]
    with pytest.raises(ReleaseError, match="git ignores all files"):
        list_code(code)


def test_a_link_of_tpufleet_itself_out_of_the_tree_is_replaced_by_its_target(tmp_path):
    code = write_code(tmp_path / "code")
    (tmp_path / "shared.py").write_text("print('shared')\n")
    (code / "shared.py").symlink_to("../shared.py")

    entries = stage(code, [], tmp_path / "staged", is_own=True)

    assert [e.kind for e in entries if e.path in ("shared.py", "latest")] == ["link", "file"]
    assert not (tmp_path / "staged/shared.py").is_symlink()
    assert release_problems(tmp_path / "staged", release_id(entries)) == []


@pytest.mark.parametrize("target", ["../nothing", "../folder"])
def test_a_link_of_tpufleet_itself_to_a_missing_file_or_directory_is_refused(tmp_path, target):
    (tmp_path / "folder").mkdir()
    code = write_code(tmp_path / "code")
    (code / "leak").symlink_to(target)

    with pytest.raises(ReleaseError, match="leak"):
        stage(code, [], tmp_path / "staged", is_own=True)


LINK_AND_A_FILE_BEHIND_IT = [Entry("a", "link", "b"), Entry("a/x", "file", "0" * 64)]


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        *(
            ([Entry(path, "file", "0" * 64)], "not a valid path in a release")
            for path in ("/etc/cron.d/x", "../x", "a/../../x", "a//x", "")
        ),
        *(
            ([Entry("leak", "link", target)], "leak is a link to")
            for target in ("/etc/passwd", "../secret")
        ),
        (LINK_AND_A_FILE_BEHIND_IT, "inside a symbolic link"),
    ],
)
def test_a_manifest_whose_files_could_be_outside_of_the_release_is_refused(entries, error):
    with pytest.raises(ReleaseError, match=error):
        load(dump(entries).encode())


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda root: swap(root / "train/main.py").write_text("print('HELLO')\n"), "differs"),
        (lambda root: (root / "train/main.py").unlink(), "is missing"),
        (lambda root: os.mkfifo(swap(root / "train/main.py")), "is missing"),
        (lambda root: (root / MANIFEST).unlink(), "no manifest"),
        (lambda root: os.mkfifo(swap(root / MANIFEST)), "no manifest"),
        (lambda root: swap(root / MANIFEST).write_text(dump([])), "its manifest is of"),
    ],
    ids=["changed", "missing", "a pipe", "no manifest", "a pipe as manifest", "another manifest"],
)
def test_a_damaged_transfer_is_never_installed(tmp_path, damage, error):
    name = stage_code(write_code(tmp_path / "code"), tmp_path / "arrived")
    damage(tmp_path / "arrived")

    with pytest.raises(ReleaseError, match=error):
        put(tmp_path / "arrived", tmp_path / "releases", name)

    assert list((tmp_path / "releases").iterdir()) == []


def test_nothing_in_an_installed_release_is_writable(tmp_path):
    name = stage_code(write_code(tmp_path / "code"), tmp_path / "arrived")

    release = put(tmp_path / "arrived", tmp_path / "releases", name)

    paths = [path for path in (release, *release.rglob("*")) if not path.is_symlink()]
    assert [path for path in paths if path.stat().st_mode & 0o222] == []


def test_files_that_are_not_in_the_manifest_are_not_installed(tmp_path):
    name = stage_code(write_code(tmp_path / "code"), tmp_path / "arrived")
    (tmp_path / "arrived/extra").write_text("x")

    release = put(tmp_path / "arrived", tmp_path / "releases", name)

    assert release_problems(release, name) == []
    assert not (release / "extra").exists()


def test_a_file_that_is_replaced_by_a_link_does_not_change_the_target_of_the_link(tmp_path):
    name = stage_code(write_code(tmp_path / "code"), tmp_path / "arrived")
    other = tmp_path / "other"
    other.write_text("print('hello')\n")
    other.chmod(0o600)
    swap(tmp_path / "arrived/train/main.py").symlink_to(other)

    with pytest.raises(ReleaseError, match="is missing"):
        put(tmp_path / "arrived", tmp_path / "releases", name)

    assert other.stat().st_mode & 0o777 == 0o600


def test_an_interrupted_install_leaves_nothing(tmp_path):
    def interrupted(target: Path, last: Path | None) -> None:
        (target / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install(tmp_path / "releases", "a" * 16, interrupted)

    assert list((tmp_path / "releases").iterdir()) == []
