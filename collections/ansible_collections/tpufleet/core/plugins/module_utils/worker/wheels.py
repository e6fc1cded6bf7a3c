"""Directories of the wheels that a lock file pins.

Setup always installs uv from such a directory. If the controller downloads the wheels, setup
installs all packages from such a directory. The TPU's leader gets the wheels once, and the other
workers copy them from the leader. Each installation verifies the lock file's hashes again.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .from_leader import FromLeaderError, pull
from .os_errors import output_says_disk_is_full
from .python_env import (
    DOWNLOADING,
    FIX,
    EnvError,
    lock_digest,
    network_environment,
    no_wheel,
    run,
)
from .release import file_digest

_WHEEL = re.compile(r"^(?P<name>[A-Za-z0-9_.]+)-(?P<version>[^-/]+)-[^/]+\.whl$")
_PROGRAM = re.compile(r"^[^/]+\.data/scripts/(?P<name>[A-Za-z0-9_.-]+)$")
_NO_WHEEL = re.compile(r"No matching distribution found for (?P<package>[^\s;]+)")

OPTIONS = {
    "lock": {"type": "str", "required": True},
    "leader_only": {"type": "bool", "default": False},
    "source": {"type": "str", "choices": ["registry", "controller"], "default": "registry"},
    "pack": {"type": "path"},
    "cache": {"type": "path", "default": "~/.cache/tpufleet"},
    "env": {"type": "dict", "default": {}},
}
"""The options shared by modules that install wheels (doc_fragments/wheels.py)."""


class WheelsMissingError(Exception):
    """The controller must send the wheels; ``needs`` describes the worker's Python and machine."""

    def __init__(self, minor: int) -> None:
        super().__init__("the controller must send the wheels")
        glibc = platform.libc_ver()[1].partition(".")[2] or "17"
        self.needs = {"minor": minor, "machine": platform.machine(), "glibc": int(glibc)}


def wheels_folder(cache: Path, lock: str, minor: int) -> Path:
    """Return the directory of a lock file's wheels for Python 3.``minor``, below ``cache``."""
    return cache / "wheels" / f"{lock_digest(lock)[:16]}-3.{minor}"


def download(
    folder: Path,
    lock: str,
    pip: list[str],
    env: Mapping[str, str],
    options: Sequence[str] = (),
) -> None:
    """Download the wheels of a lock file to ``folder``, which appears only when it is complete.

    Wheels that were downloaded to a directory next to ``folder``, for another lock file, are linked
    instead of downloaded again. ``pip`` is the command that starts pip. The wheels are for pip's
    Python, unless ``options`` for pip name another target. Raises EnvError with pip's output
    if pip fails, and OSError if ``folder`` cannot be written.
    """
    if folder.is_dir():
        return
    new = folder.with_name(f".{folder.name}.new")
    new.mkdir(parents=True, exist_ok=True)
    remove_unusable(new, lock)
    for other in sorted(folder.parent.glob("[!.]*/*.whl")):
        if not (new / other.name).exists() and file_digest(other) in lock:
            os.link(other, new / other.name)
    command = [*pip, "download", "--quiet", "--no-deps", "--require-hashes"]
    # pip prefers local files (--find-links) to downloads.
    command += ["--only-binary", ":all:", "--find-links", str(new), "--dest", str(new), *options]

    lock_file = new / "lock"
    lock_file.write_text(lock, encoding="utf-8")
    try:
        run([*command, "-r", str(lock_file)], pip_environment(env), DOWNLOADING)
    except EnvError as error:
        if output_says_disk_is_full(error.output):
            raise
        if missing := _NO_WHEEL.search(error.output):
            raise no_wheel(missing["package"]) from None
        raise EnvError(f"{error}. {FIX}") from None
    new.replace(folder)


def copy_from_leader(folder: Path) -> None:
    """Copy the leader's wheel directory of the same name. Raises FromLeaderError."""
    if folder.is_dir():
        return
    new = folder.with_name(f".{folder.name}.new")
    new.parent.mkdir(parents=True, exist_ok=True)
    pull("cache", f"wheels/{folder.name}", new)
    new.replace(folder)


def provide_wheels(folder: Path, lock: str, pack: Path | None, leader: bool, minor: int) -> str:
    """Put wheels into ``folder`` without internet access, from the leader or the archive ``pack``.

    Args:
        folder: the directory to create (``wheels_folder``).
        lock: the lock file's text.
        pack: the archive that the controller has sent; None if it has sent none.
        leader: whether this worker can copy from a leader.
        minor: the minor version of the worker's Python.

    Returns a warning if the archive was used although there is a leader, else an empty string.

    Raises:
        WheelsMissingError: the controller must send an archive.
        EnvError: the archive contains anything but wheels that the lock file pins.
    """
    if folder.is_dir():
        return ""
    if pack:
        unpack(pack, folder, lock)
        return "the leader has no wheels, so the controller sent them" if leader else ""
    if leader:
        try:
            copy_from_leader(folder)
            return ""
        except FromLeaderError:
            # No warning here: the controller sends an archive and calls this again with ``pack``,
            # and that call returns the warning.
            pass
    raise WheelsMissingError(minor)


def unpack(pack: Path, folder: Path, lock: str) -> None:
    """Unpack the wheels in the tar file ``pack`` to ``folder``.

    Raises EnvError if the tar file contains anything but wheels whose hashes are in the lock file,
    and OSError if a file cannot be written.
    """
    new = folder.with_name(f".{folder.name}.new")
    new.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(pack) as archive:
            for member in archive:
                content = archive.extractfile(member) if _WHEEL.match(member.name) else None
                if content is None:
                    raise EnvError(
                        f"the archive of wheels from the controller has {member.name}, which is "
                        "not a wheel. Delete the directory packs in jax_wheels_cache (default: "
                        "~/.cache/tpufleet) on the controller, then run: ansible-playbook setup.yml"
                    )
                with (new / member.name).open("wb") as stream:
                    shutil.copyfileobj(content, stream)
                if file_digest(new / member.name) not in lock:
                    (new / member.name).unlink()
                    raise EnvError(
                        f"{member.name} does not match a hash in the lock file. Delete packs and "
                        "wheels in jax_wheels_cache (default: ~/.cache/tpufleet) on the "
                        "controller, then run: ansible-playbook setup.yml"
                    )
    except tarfile.TarError as error:
        raise EnvError(
            f"the archive of wheels from the controller cannot be read ({error}). Delete the "
            "directory packs in jax_wheels_cache (default: ~/.cache/tpufleet) on the controller, "
            "then run: ansible-playbook setup.yml"
        ) from None
    remove_unusable(new, lock)
    new.replace(folder)


def unpack_programs(folder: Path, lock: str, bin_folder: Path) -> None:
    """Unpack the scripts of the wheels in ``folder`` to ``bin_folder``.

    Scripts are the programs in the directory ``NAME.data/scripts`` of a wheel (binary distribution
    format, section "The .data directory"). The other files are not unpacked, because a tool that is
    a single program, such as uv, does not need them.

    If the lock file does not have the hash of a wheel, removes ``folder`` and raises EnvError.
    Raises OSError if a file cannot be written.
    """
    bin_folder.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(folder.glob("*.whl")):
        if file_digest(wheel) not in lock:
            shutil.rmtree(folder)
            raise EnvError(
                f"{wheel.name} did not match a hash in the lock file, so {folder} was removed. "
                "Download the wheels again: ansible-playbook setup.yml. If that does not help, "
                "remove this directory on the TPU's worker 0, too"
            )
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                match = _PROGRAM.match(member.filename)
                if match:
                    program = bin_folder / match["name"]
                    with archive.open(member) as content, program.open("wb") as stream:
                        shutil.copyfileobj(content, stream, 1 << 20)
                    program.chmod(0o755)


def remove_unusable(folder: Path, lock: str) -> None:
    """Remove everything from ``folder`` except complete wheels that the lock file pins."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif not _WHEEL.match(entry.name) or file_digest(entry) not in lock:
            entry.unlink()


def remove_wheels(cache: Path, lock: str) -> None:
    """Remove the wheels of a lock file from ``cache``, for all Python versions."""
    name = f"{lock_digest(lock)[:16]}-3.*"
    for folder in [*(cache / "wheels").glob(name), *(cache / "wheels").glob(f".{name}")]:
        shutil.rmtree(folder, ignore_errors=True)


def pip_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for pip. Indexes that are set for uv apply to pip too."""
    variables = network_environment({**os.environ, **env})
    for uv_name, pip_name in (
        ("UV_INDEX_URL", "PIP_INDEX_URL"),
        ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"),
        ("UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"),
    ):
        if variables.get(uv_name):
            variables.setdefault(pip_name, variables[uv_name])
    variables.setdefault("PIP_NO_CACHE_DIR", "1")
    return variables
