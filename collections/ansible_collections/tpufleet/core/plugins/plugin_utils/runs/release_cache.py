"""Cache of releases and lock files on this controller, used to launch a run again.

A cached release is a directory named by its release id, with a manifest of its files. A power cut,
a full disk or a user may damage it. Therefore its files are flushed to disk when they are written,
and compared with the manifest before every use.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...module_utils.worker.release import (
    ID_LENGTH,
    MANIFEST,
    ReleaseError,
    release_problems,
    summary,
)
from ..replaced_file import replace_file
from .code_tree import FROM_CODE

if TYPE_CHECKING:
    from ...module_utils.worker.launch_spec import LaunchSpec

_RELEASE_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")


def verify_release(path: Path) -> None:
    """Verify that a directory contains exactly the release whose id is the directory's name.

    Raises ReleaseError with one line for the user if the name is not a release id, the release is
    missing, or the manifest or a file differs. Raises nothing else.
    """
    if not _RELEASE_ID.fullmatch(path.name):
        raise ReleaseError(f"{path}: the name is not a release id ({path.name!r:.80})")
    if not (path / MANIFEST).is_file():
        raise ReleaseError(
            f"{path}: this release is not on this controller. Launch the run from its code, with "
            f"all options of its last launch: {FROM_CODE}"
        )
    if problems := release_problems(path, path.name):
        raise ReleaseError(
            f"{path}: the cached release is damaged ({summary(problems)}). Launch the run from "
            f"its code, with all options of its last launch, which replaces the copy: {FROM_CODE}"
        )


def is_cached(path: Path) -> bool:
    """Return whether the release at ``path`` in the cache exists and is not damaged."""
    try:
        verify_release(path)
    except ReleaseError:
        return False
    return True


def cache_release(tree: Path, path: Path) -> None:
    """Copy a release to ``path`` in the cache and verify it; replace a damaged copy.

    Files are copied, not linked, so that later edits of the code do not change the cached release.
    ``tree`` is the directory with the files of the release. Raises OSError, and ReleaseError if
    ``tree`` is not the release that ``path`` names, because a file changed after the id was
    computed.
    """
    if is_cached(path):
        # Mark the release as new, so that the watch keeps it although no run record names it yet.
        os.utime(path)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=path.parent))
    try:
        copy = building / path.name
        shutil.copytree(tree, copy, symlinks=True, copy_function=_copy_durably)
        for folder, _, _ in os.walk(copy):
            _sync(Path(folder))
        verify_release(copy)
        if path.exists():
            path.rename(building / "damaged")
        try:
            copy.rename(path)
        except OSError:
            verify_release(path)  # another process may have just cached the same release
        _sync(path.parent)
    finally:
        shutil.rmtree(building)


def _copy_durably(source: str, destination: str) -> None:
    shutil.copy2(source, destination)
    _sync(Path(destination))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


RELEASES, LOCKS = "releases", "locks"


def local_state_dir(fleet_state: str) -> str:
    """Return the controller's directory for cached releases, logs and reports.

    This is ``fleet_state`` itself, or ``~/.cache/tpufleet`` if ``fleet_state`` is in a bucket.
    """
    if "://" in fleet_state:
        return str(Path.home() / ".cache/tpufleet")
    return str(Path(fleet_state).expanduser())


def cached_release_path(state_dir: Path, release: str) -> Path:
    """Return where a release is cached below ``state_dir``, the local state directory."""
    return state_dir / RELEASES / release


def cached_lock_path(state_dir: Path, digest: str) -> Path:
    """Return the path of the cached lock file with this SHA-256 digest.

    ``state_dir`` is the controller's local state directory.
    """
    return state_dir / LOCKS / f"{digest}.lock"


def cache_lock(state_dir: Path, lock: bytes) -> None:
    """Cache a lock file under its SHA-256 digest, for relaunches. Raises OSError.

    ``state_dir`` is the controller's local state directory, ``lock`` is the file's content without
    leading and trailing whitespace.
    """
    path = cached_lock_path(state_dir, hashlib.sha256(lock).hexdigest())
    if not lock_matches_digest(path, path.stem):
        replace_file(path, lock + b"\n", durable=True)


def lock_matches_digest(lock: Path, digest: str) -> bool:
    """Return whether a lock file exists and its content has this SHA-256 digest.

    Leading and trailing whitespace does not count.
    """
    try:
        return hashlib.sha256(lock.read_bytes().strip()).hexdigest() == digest
    except OSError:
        return False


def missing_cached_file(launch: LaunchSpec, state_dir: Path) -> str:
    """Return the path of a launch's release or lock file that is missing or damaged; empty if none.

    ``state_dir`` is the controller's local state directory.
    """
    release = cached_release_path(state_dir, launch.release)
    lock = cached_lock_path(state_dir, launch.requirements)
    if not is_cached(release):
        return str(release)
    return "" if lock_matches_digest(lock, launch.requirements) else str(lock)
