"""The wheels that a lock file pins, in a directory: uv's own, and all of them where the controller
downloads; had once a TPU, then taken from its leader.

Whoever installs from them checks every file against the lock's hashes again.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .from_leader import FromLeaderError, pull
from .python_env import (
    DOWNLOADING,
    MEND,
    EnvError,
    lock_digest,
    network_environment,
    no_wheel,
    run,
)

_WHEEL = re.compile(r"^(?P<name>[A-Za-z0-9_.]+)-(?P<version>[^-/]+)-[^/]+\.whl$")
_PROGRAM = re.compile(r"^[^/]+\.data/scripts/(?P<name>[A-Za-z0-9_.-]+)$")
_REQUIREMENT = re.compile(r"[A-Za-z0-9]")
_NO_WHEEL = re.compile(r"No matching distribution found for (?P<what>[^\s;]+)")


PIPS = 3
"""How many pips download at once; each has one connection, and works out hashes meanwhile."""


class NotHereError(Exception):
    """The wheels are for the controller to send; ``needs`` says for what they must be."""

    def __init__(self, minor: int) -> None:
        super().__init__("the controller is to send the wheels")
        glibc = platform.libc_ver()[1].partition(".")[2] or "17"
        self.needs = {"minor": minor, "machine": platform.machine(), "glibc": int(glibc)}


def wheels_folder(cache: Path, lock: str, minor: int) -> Path:
    """Name the directory of a lock file's wheels for Python 3.``minor``."""
    return cache / "wheels" / f"{lock_digest(lock)[:16]}-3.{minor}"


def download(
    folder: Path,
    lock: str,
    pip: list[str],
    env: Mapping[str, str],
    options: Sequence[str] = (),
) -> None:
    """Have the wheels of a lock file in ``folder``, which is there afterwards or not at all.

    Wheels of other lock files beside it are taken again if this one pins them, to the hash.
    ``pip`` are the words that run a pip of the Python that the wheels are for, or ``options`` tell
    it what they are for. Raises EnvError with pip's own reason, OSError.
    """
    if folder.is_dir():
        return
    new = folder.with_name(f".{folder.name}.new")
    new.mkdir(parents=True, exist_ok=True)
    keep(new, lock)
    for other in sorted(folder.parent.glob("[!.]*/*.whl")):
        if not (new / other.name).exists() and file_digest(other) in lock:
            os.link(other, new / other.name)
    words = [*pip, "download", "--quiet", "--no-deps", "--require-hashes"]
    # pip prefers what lies there to what it would have to download.
    words += ["--only-binary", ":all:", "--find-links", str(new), "--dest", str(new), *options]

    def one(numbered: tuple[int, str]) -> None:
        number, text = numbered
        listed = new / f"lock.{number}"
        listed.write_text(text, encoding="utf-8")
        run([*words, "-r", str(listed)], pip_environment(env), DOWNLOADING)

    shares = split(lock, PIPS)
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and the leader's alone

    with ThreadPoolExecutor(len(shares)) as pool:
        try:
            list(pool.map(one, enumerate(shares)))
        except EnvError as error:
            if missing := _NO_WHEEL.search(str(error)):
                raise no_wheel(missing["what"]) from None
            raise EnvError(f"{error}: {MEND}") from None
    new.replace(folder)


def split(lock: str, most: int) -> list[str]:
    """Share out a lock file's requirements to at most ``most`` lock files, since a pip takes one
    at a time; what is no requirement holds for each. One of few stays as it is."""
    entries = re.split(r"^(?=[^\s#])", lock, flags=re.MULTILINE)
    general = [entry for entry in entries if not _REQUIREMENT.match(entry)]
    pinned = [entry for entry in entries if _REQUIREMENT.match(entry)]
    count = min(most, len(pinned) // 10)
    if count < 2:
        return [lock]
    return ["".join([*general, *pinned[number::count]]) for number in range(count)]


def take_from_leader(folder: Path) -> None:
    """Have what the leader has under the same name. Raises FromLeaderError."""
    if folder.is_dir():
        return
    new = folder.with_name(f".{folder.name}.new")
    new.parent.mkdir(parents=True, exist_ok=True)
    pull("cache", f"wheels/{folder.name}", new)
    new.replace(folder)


def have_sent(folder: Path, lock: str, pack: Path | None, leader: bool, minor: int) -> str:
    """Have the wheels where the registry can't be reached: from the leader, or from what the
    controller has sent.

    Returns:
        What a person should know, or nothing.

    Raises:
        NotHereError: the controller has sent nothing yet.
        EnvError: what it has sent isn't what the lock file pins.
    """
    word = ""
    if folder.is_dir():
        return word
    if pack:
        unpack(pack, folder, lock)
        return "its leader gave no wheels: the controller sent them" if leader else word
    if leader:
        try:
            take_from_leader(folder)
            return word
        except FromLeaderError:
            pass  # said when they have come
    raise NotHereError(minor)


def unpack(pack: Path, folder: Path, lock: str) -> None:
    """Have the wheels of a tar file in ``folder``, each one that the lock file pins to the hash.

    Raises EnvError, OSError.
    """
    new = folder.with_name(f".{folder.name}.new")
    new.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(pack) as archive:
            for member in archive:
                content = archive.extractfile(member) if _WHEEL.match(member.name) else None
                if content is None:
                    raise EnvError(f"what the controller sent holds {member.name}, no wheel")
                with (new / member.name).open("wb") as stream:
                    shutil.copyfileobj(content, stream)
                if file_digest(new / member.name) not in lock:
                    (new / member.name).unlink()
                    raise EnvError(f"{member.name} is not what the lock file pins")
    except tarfile.TarError as error:
        raise EnvError(f"what the controller sent can't be read: {error}") from None
    keep(new, lock)
    new.replace(folder)


def unpack_programs(folder: Path, lock: str, bin_folder: Path) -> None:
    """Put the programs that wheels bring as files of their own into a directory.

    That is all that a tool in one program, such as uv, needs of an installation (binary
    distribution format, "The .data directory"). Raises EnvError where a wheel isn't what the lock
    file pins, OSError.
    """
    bin_folder.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(folder.glob("*.whl")):
        if file_digest(wheel) not in lock:
            raise EnvError(f"{wheel.name} is not what the lock file pins")
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                found = _PROGRAM.match(member.filename)
                if found:
                    program = bin_folder / found["name"]
                    with archive.open(member) as content, program.open("wb") as stream:
                        shutil.copyfileobj(content, stream, 1 << 20)
                    program.chmod(0o755)


def keep(folder: Path, lock: str) -> None:
    """Remove what an interruption left, but whole wheels of this lock."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif not _WHEEL.match(entry.name) or file_digest(entry) not in lock:
            entry.unlink()


def drop(cache: Path, lock: str) -> None:
    """Remove the wheels of a lock file, whatever Python they are for."""
    name = f"{lock_digest(lock)[:16]}-3.*"
    for folder in [*(cache / "wheels").glob(name), *(cache / "wheels").glob(f".{name}")]:
        shutil.rmtree(folder, ignore_errors=True)


def pip_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Give pip's variables; an index that is told to uv holds for pip as well."""
    variables = network_environment({**os.environ, **env})
    for ours, pips in (
        ("UV_INDEX_URL", "PIP_INDEX_URL"),
        ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"),
        ("UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"),
    ):
        if variables.get(ours):
            variables.setdefault(pips, variables[ours])
    variables.setdefault("PIP_NO_CACHE_DIR", "1")
    return variables


def file_digest(path: Path) -> str:
    """Give a file's SHA-256 in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
