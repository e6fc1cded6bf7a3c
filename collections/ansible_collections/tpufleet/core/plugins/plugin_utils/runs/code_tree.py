"""The code of a release: the list of its files, and the copy of them that workers receive."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ansible import constants

from ...module_utils.worker.release import (
    MANIFEST,
    Entry,
    ReleaseError,
    build,
    dump,
    printable,
    read_manifest,
    release_id,
)
from ..folder_lock import locked_folder

SKIPPED = {".git", "__pycache__"}
FROM_CODE = (
    "ansible-playbook train.yml -e run=NAME -e config=FILE (for your own trainer also "
    "-e code=DIRECTORY and -e command=COMMAND)"
)
"""The command that launches a run from its code, which replaces this controller's cached copy."""


def list_code(root: Path, code_paths: Sequence[str] = (), *, is_own: bool = False) -> list[str]:
    """List the code files below ``root`` as sorted relative paths, without those that git ignores.

    For a cached release, return the files in its manifest. ``code_paths`` (an Ansible variable)
    names the files and directories to include; empty includes all. ``is_own`` says that the code is
    tpufleet's own: then the list includes files that git ignores. Raises ReleaseError.
    """
    if not root.is_dir():
        raise ReleaseError(
            f"there is no code directory {root}: give another with -e code=DIRECTORY"
        )
    if (root / MANIFEST).is_file():
        return sorted(entry.path for entry in read_manifest(root))
    inside_git = not is_own and any(
        (folder / ".git").exists() for folder in (root.absolute(), *root.absolute().parents)
    )
    paths = sorted(set(git_files(root) if inside_git else all_files(root)))
    for code_path in code_paths:
        if not any(is_below(path, code_path) for path in paths):
            raise ReleaseError(
                f"{code_path} of code_paths does not exist in {root}, has no files, or is ignored "
                "by git. Correct code_paths"
            )
    selected = [
        path
        for path in paths
        if not code_paths or any(is_below(path, code_path) for code_path in code_paths)
    ]
    if empty := [path for path in selected if path.endswith("/")]:
        raise ReleaseError(
            f"{root}: the git submodule {empty[0]} has no files here. Fetch them: git -C {root} "
            "submodule update --init --recursive, or select other code with code_paths"
        )
    if not selected:
        raise ReleaseError(
            f"there is no code in {root}: it has no file, or git ignores all files. "
            "Choose another directory: -e code=DIRECTORY"
        )
    if MANIFEST in selected:
        raise ReleaseError(
            f"{root / MANIFEST}: this name is reserved for a release's manifest. Rename the file"
        )
    return selected


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is ``folder`` or is inside it."""
    folder = os.path.normpath(folder)
    return folder == "." or path == folder or path.startswith(folder + "/")


def git_files(root: Path) -> Iterator[str]:
    """List the tracked and untracked files below ``root`` that git does not ignore.

    Files of submodules are included. A submodule that is not initialized has no files, so its
    directory is listed, with ``/`` at the end. Raises ReleaseError.
    """
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others"]
    try:
        result = subprocess.run([*command, "--exclude-standard"], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ReleaseError(
            f"{root} is a git repository, but git is not installed here. Install git"
        ) from error
    if result.returncode != 0:
        error_lines = result.stderr.decode(errors="replace").strip().splitlines()
        raise ReleaseError(
            f"git can't list {root}: {error_lines[0] if error_lines else result.returncode}"
        )
    for name in result.stdout.split(b"\0")[:-1]:
        path = os.fsdecode(name).rstrip("/")
        if path == ".":  # in a submodule that is not initialized, git lists only "."
            continue
        full = root / path
        if full.is_dir() and not full.is_symlink():
            inner_paths = list(git_files(full))
            yield from (f"{path}/{inner}" for inner in inner_paths)
            if not inner_paths and not (full / ".git").exists():
                yield f"{path}/"
        elif os.path.lexists(full):
            yield path


def all_files(root: Path) -> Iterator[str]:
    """List every file and link below ``root`` except those in ``.git`` and ``__pycache__``."""
    for folder, folders, files in os.walk(root):
        relative = os.path.relpath(folder, root)
        folders[:] = [name for name in folders if name not in SKIPPED]
        links = [name for name in folders if os.path.islink(f"{folder}/{name}")]  # noqa: PTH114
        yield from (name if relative == "." else f"{relative}/{name}" for name in files + links)


def stage(
    root: Path, code_paths: Sequence[str], target: Path, *, is_own: bool = False
) -> list[Entry]:
    """Copy code to ``target`` with hard links if possible, and write its manifest there.

    Workers receive this copy, so all get the same code even if files in ``root`` are replaced while
    it is sent. Returns the entries of the manifest. Raises ReleaseError, also for a cached release
    that differs from its manifest.

    Args:
        root: the directory with the code.
        code_paths: the files and directories to include; empty includes all.
        target: the directory to create.
        is_own: whether the code is tpufleet's own. Then every file is included, even if git ignores
            it, and a link to a file outside of the code is copied as that file.
    """
    entries = build(root, list_code(root, code_paths, is_own=is_own), follow=is_own)
    if (root / MANIFEST).is_file() and entries != sorted(read_manifest(root)):
        raise ReleaseError(
            f"{root}: the cached release is damaged (it differs from the release's manifest). "
            f"Launch the run from its code: {FROM_CODE}"
        )
    target.mkdir(parents=True)
    for folder in {os.path.dirname(entry.path) for entry in entries}:  # noqa: PTH120 - a string
        (target / folder).mkdir(parents=True, exist_ok=True)
    for entry in entries:
        source, destination = f"{root}/{entry.path}", f"{target}/{entry.path}"
        # If the code has a link where the manifest has a file, copy the link's target.
        if entry.kind != "link":
            source = os.path.realpath(source)
        try:
            os.link(source, destination, follow_symlinks=False)
        except OSError:
            copy(source, destination)
    (target / MANIFEST).write_text(dump(entries), encoding="ascii")
    return entries


def copy(source: str, destination: str) -> None:
    """Copy a file or symbolic link. Raises ReleaseError if ``source`` no longer exists."""
    try:
        shutil.copy2(source, destination, follow_symlinks=False)
    except FileNotFoundError as error:
        raise ReleaseError(
            f"{printable(source)} was deleted while the code was being copied. Run the "
            "playbook again"
        ) from error


def staged(code: str, code_paths: Sequence[str], *, is_own: bool = False) -> tuple[Path, str]:
    """Copy a code directory with stage(); return the path of the copy and the id of its release.

    The first fork of Ansible makes the copy and the other forks of this playbook use it, so all
    workers get the same code. ``code`` is the directory, ``code_paths`` the files and directories
    to include (empty: all). For ``is_own`` see stage(). Raises ReleaseError, OSError.
    """
    directory = os.path.abspath(code)  # noqa: PTH100 - also resolves ".."
    key = hashlib.sha256(json.dumps([directory, is_own, *code_paths]).encode()).hexdigest()[:16]
    base = Path(constants.DEFAULT_LOCAL_TMP) / f"staged-{key}"
    with locked_folder(base):
        id_file = base / "name"
        if not id_file.exists():
            staging = Path(tempfile.mkdtemp(dir=base))
            entries = stage(Path(directory), code_paths, staging / "tree", is_own=is_own)
            staging.replace(base / "staged")
            id_file.write_text(release_id(entries), encoding="ascii")
        return base / "staged" / "tree", id_file.read_text(encoding="ascii")
