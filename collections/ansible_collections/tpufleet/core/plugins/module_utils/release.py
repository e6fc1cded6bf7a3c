"""What a release is: a manifest of files, its name by content, and how it is proven and put in
place.

The controller and the workers share this file, so it keeps to Python 3.9 and the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MANIFEST = ".tpufleet-manifest.json"
ID_LENGTH = 16


class ReleaseError(Exception):
    """A release can't be built, read or proven; the text is one line for a person."""


@dataclass(frozen=True, order=True)
class Entry:
    """One path of a release, relative and with ``/`` between its parts.

    ``kind`` is ``file``, ``exec`` or ``link``; ``digest`` is a file's SHA-256 in hex, or a link's
    target. Bytes that are no UTF-8 stand as surrogates, as ``os.fsdecode`` gives them.
    """

    path: str
    kind: str
    digest: str


def printable(path: str) -> str:
    """Give a path as it can be shown on a terminal, whatever bytes it is made of."""
    return ascii(path)[1:-1] if not path.isprintable() else path


def check_link(path: str, target: str) -> None:
    """Refuse a symbolic link that leads out of the tree: it would mean something else on a
    worker."""
    landing = os.path.normpath(PurePosixPath(path).parent / target)
    if target.startswith("/") or landing == ".." or landing.startswith("../"):
        raise ReleaseError(
            f"{printable(path)} is a link to {printable(target)}, outside of the code: "
            "copy the file in, or add the link to .gitignore"
        )


def check_path(path: str) -> None:
    """Refuse a path that is not one of the tree's own."""
    parts = path.split("/")
    if path.startswith("/") or not all(parts) or {".", ".."} & set(parts):
        raise ReleaseError(f"the manifest names {printable(path)!r}, which is no path in a release")


def read_entry(root: Path, path: str) -> Entry:
    """Read one path of the tree at ``root``. Raises ReleaseError for what is no file and no
    link."""
    full = root / path
    status = full.lstat()
    if stat.S_ISLNK(status.st_mode):
        target = str(full.readlink())
        check_link(path, target)
        return Entry(path, "link", target)
    if not stat.S_ISREG(status.st_mode):
        raise ReleaseError(f"{printable(path)} is neither a file nor a link: add it to .gitignore")
    kind = "exec" if status.st_mode & stat.S_IXUSR else "file"
    return Entry(path, kind, file_digest(full))


def file_digest(path: Path) -> str:
    """Give the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def build(root: Path, paths: Iterable[str]) -> list[Entry]:
    """Read the manifest of the named paths, in the order of their names."""
    return sorted(read_entry(root, path) for path in paths)


def release_id(entries: Iterable[Entry]) -> str:
    """Name a release by its content: the same files give the same name anywhere."""
    digest = hashlib.sha256()
    for entry in sorted(entries):
        for part in (entry.path, entry.kind, entry.digest):
            digest.update(os.fsencode(part) + b"\0")
    return digest.hexdigest()[:ID_LENGTH]


def dump(entries: Iterable[Entry]) -> str:
    """Write a manifest as ASCII JSON, one entry a line."""
    lines = [json.dumps([entry.path, entry.kind, entry.digest]) for entry in sorted(entries)]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def load(text: str) -> list[Entry]:
    """Read a manifest, and check that nothing in it leads out of a release."""
    try:
        entries = [Entry(str(p), str(k), str(d)) for p, k, d in json.loads(text)]
    except (ValueError, TypeError) as error:
        raise ReleaseError(f"the manifest can't be read: {error}") from error
    links = {entry.path for entry in entries if entry.kind == "link"}
    for entry in entries:
        check_path(entry.path)
        if entry.kind == "link":
            check_link(entry.path, entry.digest)
        if links & {parent.as_posix() for parent in PurePosixPath(entry.path).parents}:
            raise ReleaseError(
                f"the manifest names {printable(entry.path)}, which lies behind a link"
            )
    return entries


def present(root: Path) -> set[str]:
    """List all that is in a tree and is no directory, but for the manifest itself."""
    found = set()
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        found.update((here / name).relative_to(root).as_posix() for name in files + links)
    return found - {MANIFEST}


def differences(root: Path, entries: Iterable[Entry]) -> list[str]:
    """Compare a tree with its manifest; each line names a path and what is wrong with it."""
    wanted = {entry.path: entry for entry in entries}
    there = present(root)
    problems = [f"{printable(path)} does not belong there" for path in sorted(there - set(wanted))]
    problems += [f"{printable(path)} is missing" for path in sorted(set(wanted) - there)]
    for path in sorted(there & set(wanted)):
        try:
            same = read_entry(root, path) == wanted[path]
        except (OSError, ReleaseError):
            same = False
        if not same:
            problems.append(f"{printable(path)} differs")
    return problems


def read_manifest(release: Path) -> list[Entry]:
    """Read the manifest that lies in a release's directory. Raises ReleaseError, OSError."""
    return load((release / MANIFEST).read_text(encoding="ascii"))


def proven(release: Path, name: str) -> list[str]:
    """Tell what keeps a directory from being the release of that name; an empty list proves it."""
    try:
        entries = read_manifest(release)
    except OSError:
        return ["there is no manifest"]
    except ReleaseError as error:
        return [str(error)]
    if release_id(entries) != name:
        return [f"the manifest is that of release {release_id(entries)}"]
    return differences(release, entries)


def install(incoming: Path, releases: Path, name: str) -> None:
    """Make ``releases/name`` out of what has come: copied, proven, on the disk, then renamed.

    Nothing is seen under the name before it is whole. Raises ReleaseError when what has come is not
    the release, OSError when it can't be written.
    """
    problems = proven(incoming, name)
    if problems:
        raise ReleaseError(f"what has come is not release {name}: {summary(problems)}")
    entries = read_manifest(incoming)
    releases.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=releases))
    try:
        for entry in entries:
            copy_entry(incoming, building, entry)
        shutil.copyfile(incoming / MANIFEST, building / MANIFEST)
        problems = proven(building, name)
        if problems:
            raise ReleaseError(f"release {name} changed while it was copied: {summary(problems)}")
        protect(building)
        subprocess.run(["sync", "-f", str(building)], check=False)
        final = releases / name
        if final.exists():
            remove(final)
        building.rename(final)
    finally:
        if building.exists():
            remove(building)


def copy_entry(source: Path, target: Path, entry: Entry) -> None:
    """Copy one path of a release, with nothing of it but content and the executable bit."""
    destination = target / entry.path
    destination.parent.mkdir(parents=True, exist_ok=True)
    if entry.kind == "link":
        destination.symlink_to(entry.digest)
        return
    shutil.copyfile(source / entry.path, destination, follow_symlinks=False)
    destination.chmod(0o755 if entry.kind == "exec" else 0o644)


def protect(root: Path) -> None:
    """Take the right to write from everyone: a release never changes."""
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o555 if path.stat().st_mode & stat.S_IXUSR else 0o444)
        Path(folder).chmod(0o555)


def remove(root: Path) -> None:
    """Remove a tree, also one that was protected."""
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)
    shutil.rmtree(root)


def newest(releases: Path) -> Path | None:
    """Find the release that was put in place last, if there is any."""
    found = [path for path in releases.glob("[0-9a-f]*") if (path / MANIFEST).is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def prune(releases: Path, kept: int, used: set[str]) -> list[str]:
    """Remove all but the ``kept`` releases that came last and the ``used``; name those gone."""
    found = sorted(
        (path for path in releases.glob("[0-9a-f]*") if path.is_dir()),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    gone = [path for path in found[kept:] if path.name not in used]
    for path in gone:
        # Out of sight first: nobody must take half a release for one.
        dying = path.with_name(f".{path.name}.gone")
        path.rename(dying)
        remove(dying)
    return [path.name for path in gone]


def summary(problems: list[str]) -> str:
    """Say the first few of many problems."""
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more
