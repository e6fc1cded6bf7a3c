"""Releases and lock files that this controller keeps, from which a run is launched again.

A cached release is a directory named by its release id, with a manifest of its files. It is written
durably and verified before every use: it may be damaged by a power cut, a full disk or a person.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...module_utils.worker.release import ID_LENGTH, MANIFEST, ReleaseError, proven, summary

if TYPE_CHECKING:
    from ...module_utils.worker.launch_spec import LaunchSpec

_RELEASE_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")


def verify_release(path: Path) -> None:
    """Verify that a directory holds, unchanged, the release it is named after.

    Raises ReleaseError with one line for the user: the name is no release id, the release is not
    there, or its manifest or a file differs. Raises nothing else.
    """
    if not _RELEASE_ID.fullmatch(path.name):
        raise ReleaseError(f"{path}: the name is not a release id ({path.name!r:.80})")
    if not (path / MANIFEST).is_file():
        raise ReleaseError(
            f"{path}: this release is not on this controller. Launch the run from its code: "
            "ansible-playbook train.yml -e code=DIRECTORY"
        )
    try:
        problems = proven(path, path.name)
    except OSError as error:
        problems = [f"{error.filename}: {error.strerror}"]
    if problems:
        raise ReleaseError(
            f"{path}: the cached release is damaged ({summary(problems)}). Launch the run from "
            "its code, which replaces it: ansible-playbook train.yml -e code=DIRECTORY"
        )


def cache_release(tree: Path, path: Path) -> None:
    """Copy a staged tree to ``path`` in the cache, durably and verified; replace a damaged copy.

    Copies, not links: a cached release does not change when the code does. Raises ReleaseError if
    the tree is not the release that ``path`` names (a file changed meanwhile), OSError.
    """
    try:
        verify_release(path)
        os.utime(path)  # so that it is not pruned before a record names it
        return
    except ReleaseError:
        pass  # missing or damaged: write it
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".keep-", dir=path.parent))
    try:
        copy = building / path.name
        shutil.copytree(tree, copy, symlinks=True, copy_function=_copy_durably)
        for folder, _, _ in os.walk(copy, topdown=False):
            _sync(Path(folder))
        verify_release(copy)
        if path.exists():
            path.rename(building / "damaged")
        try:
            copy.rename(path)
        except OSError:
            verify_release(path)  # another process may have written it meanwhile
        _sync(path.parent)
    finally:
        shutil.rmtree(building)


def _copy_durably(source: str, destination: str) -> None:
    shutil.copy2(source, destination)
    _sync(Path(destination))


def _sync(path: Path) -> None:
    """Wait until a file or directory is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


RELEASES, LOCKS = "releases", "locks"


def kept_release(kept: Path | str, release: str) -> Path:
    """Return where this controller keeps the code of a release; ``kept`` is its state directory."""
    return Path(kept).expanduser() / RELEASES / release


def kept_lock(kept: Path | str, digest: str) -> Path:
    """Return where this controller keeps the lock file of a Python environment."""
    return Path(kept).expanduser() / LOCKS / f"{digest}.lock"


def keep_lock(kept: str, lock: bytes) -> None:
    """Keep a copy of a lock file under its digest, for relaunches. Raises OSError."""
    place = kept_lock(kept, hashlib.sha256(lock).hexdigest())
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if is_whole(place, place.stem):
        return
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".lock-", delete=False) as stream:
        stream.write(lock + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    Path(stream.name).replace(place)


def is_whole(lock: Path, digest: str) -> bool:
    """Return whether a lock file exists and has this digest."""
    try:
        return hashlib.sha256(lock.read_bytes().strip()).hexdigest() == digest
    except OSError:
        return False


def missing_here(launch: LaunchSpec, kept: Path) -> str:
    """Return the path of what a relaunch needs and is missing or damaged; empty if nothing is."""
    release, lock = kept_release(kept, launch.release), kept_lock(kept, launch.requirements)
    try:
        verify_release(release)
    except ReleaseError:
        return str(release)
    return "" if is_whole(lock, launch.requirements) else str(lock)
