"""Manifest, name, verification and installation of releases.

This file is used on the controller and on workers.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

MANIFEST = ".tpufleet-manifest.json"
ID_LENGTH = 16
MODES = {"file": 0o444, "exec": 0o555}
"""File modes in a release, by kind of entry."""


class ReleaseError(Exception):
    """A release cannot be built, read or verified; the message is one line for the user."""


class Entry(NamedTuple):
    """One path of a release, relative and with ``/`` as the separator.

    ``kind`` is ``file``, ``exec`` or ``link``; ``digest`` is a file's SHA-256 in hex, or a link's
    target. Bytes of a path that are not UTF-8 are surrogate escapes, as ``os.fsdecode`` returns
    them. Entry is a named tuple for speed: workers read, sort and compare thousands of entries.
    """

    path: str
    kind: str
    digest: str


def printable(path: str) -> str:
    """Return a path in a form that is safe to print; a path that is not printable is escaped."""
    return ascii(path)[1:-1] if not path.isprintable() else path


def leaves_tree(path: str, target: str) -> bool:
    """Return whether a symbolic link at ``path`` has a target outside the tree."""
    resolved = os.path.normpath(PurePosixPath(path).parent / target)
    return target.startswith("/") or resolved == ".." or resolved.startswith("../")


def check_link(path: str, target: str) -> None:
    """Raise ReleaseError if the symbolic link at ``path`` has a target outside the tree.

    On a worker, such a link would lead to another file or to none.
    """
    if leaves_tree(path, target):
        raise ReleaseError(
            f"{printable(path)} is a link to {printable(target)}, outside of the code. Replace the "
            "link by a copy of the file, or add it to .gitignore"
        )


def check_path(path: str) -> None:
    """Raise ReleaseError for a path in a manifest that could lead out of the release."""
    parts = path.split("/")
    if path.startswith("/") or not all(parts) or {".", ".."} & set(parts):
        raise ReleaseError(
            f"the manifest names {printable(path)!r}, which is not a valid path in a release"
        )


def read_entry(root: Path, path: str, *, follow: bool = False) -> Entry:
    """Return the entry for one path of the tree at ``root``.

    With ``follow``, a link to a file outside the tree counts as that file. Raises ReleaseError for
    such a link without ``follow``, and if the path is neither a file nor a link.
    """
    full = f"{root}/{path}"
    status = os.lstat(full)
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(full)  # noqa: PTH115 - faster, for thousands of files
        if not (follow and leaves_tree(path, target) and os.path.exists(full)):  # noqa: PTH110
            check_link(path, target)
            return Entry(path, "link", target)
        status = os.stat(full)  # noqa: PTH116
    if not stat.S_ISREG(status.st_mode):
        raise ReleaseError(
            f"{printable(path)} of the code is neither a file nor a link. Remove it, or, in a git "
            "repository, add it to .gitignore"
        )
    kind = "exec" if status.st_mode & stat.S_IXUSR else "file"
    return Entry(path, kind, file_digest(full))


def file_digest(path: str | Path) -> str:
    """Return the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - faster, for thousands of files
        while block := stream.read(1 << 18):
            digest.update(block)
    return digest.hexdigest()


def build(root: Path, paths: Iterable[str], *, follow: bool = False) -> list[Entry]:
    """Return the entries for the given paths, sorted. ``follow`` is described at read_entry."""
    return sorted(read_entry(root, path, follow=follow) for path in paths)


def release_id(entries: Iterable[Entry]) -> str:
    """Return the name of a release, a digest that depends only on its ``entries``."""
    digest = hashlib.sha256()
    for entry in sorted(entries):
        for value in (entry.path, entry.kind, entry.digest):
            digest.update(os.fsencode(value) + b"\0")
    return digest.hexdigest()[:ID_LENGTH]


def dump(entries: Iterable[Entry]) -> str:
    """Format a manifest as ASCII JSON, one entry per line."""
    lines = [json.dumps([entry.path, entry.kind, entry.digest]) for entry in sorted(entries)]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def listing(entries: Iterable[Entry]) -> str:
    """Format a manifest for a diff: one line per entry with path, kind and start of the digest."""
    return "".join(
        f"{ascii(entry.path)[1:-1]} {entry.kind} {entry.digest[:12]}\n" for entry in sorted(entries)
    )


def load(text: bytes) -> list[Entry]:
    """Parse a manifest.

    Raises ReleaseError if the manifest is malformed or has a path that leads out of the release.
    """
    try:
        entries = [Entry(str(p), str(k), str(d)) for p, k, d in json.loads(text.decode("ascii"))]
    except (ValueError, TypeError) as error:
        raise ReleaseError(f"the manifest can't be read: {error}") from error
    links = {entry.path for entry in entries if entry.kind == "link"}
    for entry in entries:
        check_path(entry.path)
        if entry.kind == "link":
            check_link(entry.path, entry.digest)
        if links and links & {parent.as_posix() for parent in PurePosixPath(entry.path).parents}:
            raise ReleaseError(
                f"the manifest names {printable(entry.path)}, which is inside a symbolic link"
            )
    return entries


def paths_in(root: Path) -> set[str]:
    """Return all paths of a tree except directories and the manifest."""
    paths = set()
    for folder, folders, files in os.walk(root):
        relative = os.path.relpath(folder, root)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        paths.update(name if relative == "." else f"{relative}/{name}" for name in files + links)
    return paths - {MANIFEST}


def differences(root: Path, entries: Iterable[Entry]) -> list[str]:
    """Compare the tree at ``root`` with the entries of a manifest.

    Returns one line for each path that differs.
    """
    expected = {entry.path: entry for entry in entries}
    present_paths = paths_in(root)
    problems = [
        f"{printable(path)} is not in the manifest"
        for path in sorted(present_paths - set(expected))
    ]
    problems += [f"{printable(path)} is missing" for path in sorted(set(expected) - present_paths)]
    for path in sorted(present_paths & set(expected)):
        try:
            is_same = read_entry(root, path) == expected[path]
        except (OSError, ReleaseError):
            is_same = False
        if not is_same:
            problems.append(f"{printable(path)} differs")
    return problems


def read_manifest(release: Path) -> list[Entry]:
    """Read the manifest of a release's directory. Raises ReleaseError, OSError."""
    return load((release / MANIFEST).read_bytes())


def release_problems(release: Path, name: str) -> list[str]:
    """Return how a directory differs from the release ``name``; empty if the release is intact."""
    try:
        entries = read_manifest(release)
    except OSError:
        return ["its manifest is missing"]
    except ReleaseError as error:
        return [str(error)]
    if release_id(entries) != name:
        return [f"its manifest is of release {release_id(entries)}"]
    return differences(release, entries)


def install(
    releases: Path,
    name: str,
    fill: Callable[[Path, Path | None], None],
    last: Path | None = None,
) -> None:
    """Create ``releases/name``: fill a directory with ``fill``, verify it, then rename it.

    ``fill`` gets an empty directory that only this user can write to, and ``last``, an earlier
    release whose files it may hard-link instead of copying, or None. Files of ``last`` may be
    damaged. Therefore, if the verification fails, ``fill`` is called again without ``last``. The
    directory gets its name only when the release is complete; a failure leaves nothing behind.

    Files are not synced to disk, so a power cut can damage a release. Therefore each launch first
    verifies its release, and a push or a setup replaces a damaged release.

    Raises ReleaseError if the content does not match the name, OSError if it cannot be written, and
    whatever ``fill`` raises.
    """
    releases.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    for link_source in [last, None] if last else [None]:
        new = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=releases))
        try:
            fill(new, link_source)
            problems = release_problems(new, name)
            if not problems:
                protect(new)
                final = releases / name
                if final.exists():
                    remove(final)
                new.rename(final)
                return
        finally:
            if new.exists():
                remove(new)
    raise ReleaseError(
        f"the pushed files do not match release {name}: {summary(problems)}. Run the playbook again"
    )


def linked_release(link: Path, releases: Path) -> Path | None:
    """Return the release in ``releases`` that the symbolic link ``link`` points to; else None."""
    if not link.is_symlink():
        return None
    target = Path(os.path.realpath(link))
    return target if target.is_dir() and target.parent == Path(os.path.realpath(releases)) else None


def link_to(release: Path, link: Path) -> None:
    """Create or replace the symbolic link to a release atomically. Raises OSError."""
    new = link.with_name(f".{link.name}.{secrets.token_hex(8)}")
    new.symlink_to(os.path.relpath(release, link.parent))
    try:
        new.replace(link)
    except OSError:
        new.unlink()
        raise


def copy_pushed(incoming: Path, target: Path, last: Path | None) -> None:
    """Fill ``target`` with the files that the manifest in ``incoming`` lists.

    Files that the release ``last`` also has are hard-linked, the others are copied. Another user
    owns ``incoming`` and may change it at any time. So missing paths and special files are skipped,
    and ``target`` must be verified afterwards. Raises ReleaseError, OSError.
    """
    copy_file(f"{incoming}/{MANIFEST}", f"{target}/{MANIFEST}", MODES["file"])
    try:
        entries = read_manifest(target)
    except FileNotFoundError:
        raise ReleaseError("the pushed directory has no manifest. Run the playbook again") from None
    last_paths = {(entry.kind, entry.digest): entry.path for entry in files_of(last)}
    for folder in {os.path.dirname(entry.path) for entry in entries}:  # noqa: PTH120 - a str
        (target / folder).mkdir(parents=True, exist_ok=True)
    for path, kind, digest in entries:
        destination = f"{target}/{path}"
        if kind == "link":
            Path(destination).symlink_to(digest)
            continue
        last_path = last_paths.get((kind, digest))
        if not (last_path and try_hard_link(f"{last}/{last_path}", destination, MODES[kind])):
            copy_file(f"{incoming}/{path}", destination, MODES[kind])


def files_of(release: Path | None) -> list[Entry]:
    """Return the files in a release's manifest, without links; empty if the manifest is damaged."""
    try:
        entries = read_manifest(release) if release else []
    except (OSError, ReleaseError):
        return []
    return [entry for entry in entries if entry.kind in MODES]


def try_hard_link(source: str, destination: str, mode: int) -> bool:
    """Hard-link a file of another release to ``destination``; return whether that succeeded.

    Creates no link if the source is missing, has another mode than ``mode``, or belongs to another
    user, or if the file system refuses the link.
    """
    try:
        status = os.lstat(source)
        # A file that others own or can write to may change after the verification.
        if status.st_mode != stat.S_IFREG | mode or status.st_uid != os.geteuid():
            return False
        os.link(source, destination, follow_symlinks=False)
    except OSError:  # the source is missing, or the file system refuses the link
        return False
    return True


def copy_file(source: str, destination: str, mode: int) -> None:
    """Copy a regular file and set its mode; skip a missing path and any other kind of file."""
    try:
        # Another user owns the source: follow no link, and do not block on a pipe.
        source_fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}:
            return
        raise
    with open(source_fd, "rb", buffering=0) as stream:  # noqa: PTH123 - a descriptor
        if stat.S_ISREG(os.fstat(source_fd).st_mode):
            with open(destination, "xb") as target:  # noqa: PTH123
                shutil.copyfileobj(stream, target, 1 << 18)
                os.fchmod(target.fileno(), mode)


def protect(root: Path) -> None:
    """Remove all write permissions from a release, because a release never changes."""
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            path = f"{folder}/{name}"
            current_mode = os.lstat(path).st_mode
            mode = MODES["exec" if current_mode & stat.S_IXUSR else "file"]
            if stat.S_ISREG(current_mode) and stat.S_IMODE(current_mode) != mode:
                os.chmod(path, mode)  # noqa: PTH101
        Path(folder).chmod(0o555)


def remove(root: Path) -> None:
    """Remove a tree, even a write-protected one."""
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)
    shutil.rmtree(root)


def prune(releases: Path, keep: int, used: set[str]) -> list[str]:
    """Remove all releases except the ``keep`` newest and those whose names are in ``used``.

    Returns the names of the removed releases.
    """
    newest_first = sorted(
        (path for path in releases.glob("[0-9a-f]*") if path.is_dir()),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    to_remove = [path for path in newest_first[keep:] if path.name not in used]
    for path in to_remove:
        # Rename the release first, so that no process uses a partly removed one.
        removing = path.with_name(f".{path.name}.gone")
        path.rename(removing)
        remove(removing)
    return [path.name for path in to_remove]


def sweep(releases: Path) -> None:
    """Remove the remains of interrupted calls of ``install`` and ``prune``.

    The caller must hold the lock of installations, so that no installation in progress is removed.
    """
    for path in releases.glob(".*"):
        if path.is_dir():
            remove(path)


def summary(problems: list[str]) -> str:
    """Format the first three problems, and the number of others."""
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more
