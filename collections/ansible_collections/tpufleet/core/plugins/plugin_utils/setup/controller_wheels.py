"""Tar files of wheels that the controller downloads for workers without internet access."""

from __future__ import annotations

import os
import re
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from ...module_utils.worker.python_env import EnvError, lock_digest, network_environment, run
from ...module_utils.worker.wheels import download
from ..folder_lock import locked_folder

_OLDEST_GLIBC = 17
"""glibc 2.17, the version of manylinux2014 (PEP 599), which current wheels still support."""


@dataclass(frozen=True)
class Target:
    """The Python platform of a worker: CPython 3.``minor``, its machine type, glibc 2.``glibc``."""

    minor: int
    machine: str
    glibc: int

    def markers(self) -> dict[str, str]:
        """Return the values of environment markers (PEP 508) on the worker."""
        return {
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_version": f"3.{self.minor}",
            "python_full_version": f"3.{self.minor}.0",
            "sys_platform": "linux",
        }

    def options(self) -> list[str]:
        """Return pip's options for this target, with all compatible platforms, newest first.

        They must list older platforms, because pip accepts only wheels for the listed ones.
        """
        words = ["--python-version", f"3.{self.minor}", "--implementation", "cp"]
        for abi in (f"cp3{self.minor}", "abi3", "none"):
            words += ["--abi", abi]
        for glibc in range(self.glibc, _OLDEST_GLIBC, -1):
            words += ["--platform", f"manylinux_2_{glibc}_{self.machine}"]
        return [*words, "--platform", f"manylinux2014_{self.machine}"]


def requirements_for(target: Target, lock: str) -> str:
    """Return the requirements of a lock file that apply to a target, without their markers.

    pip itself would evaluate the markers for the controller. ``lock`` is the text of the file.
    """
    kept = []
    lines = re.sub(r"\\\n\s*", " ", lock).splitlines()
    for line in (line.strip() for line in lines):
        if not line or line.startswith("#"):
            continue
        words, *hashes = re.split(r"\s+(?=--hash=)", line)
        try:
            wanted = Requirement(words)
        except InvalidRequirement:
            kept.append(line)  # keep lines with pip options, such as --index-url
            continue
        if wanted.marker is None or wanted.marker.evaluate(target.markers()):
            wanted.marker = None
            kept.append(" ".join([str(wanted), *hashes]))
    return "\n".join(kept) + "\n"


def wheels_archive(lock: str, target: Target, cache: Path, env: Mapping[str, str]) -> Path:
    """Return the path of a tar file with all wheels of a lock file; create it if it is missing.

    Args:
        lock: the text of the lock file.
        target: the worker's Python.
        cache: a cache directory on the controller.
        env: additional variables for pip.

    Raises:
        EnvError: pip failed; the message is its error.
        OSError: a file cannot be written.
    """
    name = f"{lock_digest(lock)[:16]}-3.{target.minor}-{target.machine}"
    pack = cache / "packs" / f"{name}.tar"
    with locked_folder(pack.parent):
        if pack.is_file():
            return pack
        folder = cache / "wheels" / name
        try:
            download(folder, requirements_for(target, lock), _pip(cache), env, target.options())
        except EnvError as error:
            raise EnvError(f"the controller: {error}") from None
        new = pack.with_suffix(".new")
        with tarfile.open(new, "w") as archive:
            for wheel in sorted(folder.glob("*.whl")):
                archive.add(wheel, wheel.name)
        new.replace(pack)
    return pack


def _pip(cache: Path) -> list[str]:
    """Return the command of pip in a virtual environment, which is created on first use."""
    home = cache / f"pip-{sys.version_info.major}.{sys.version_info.minor}"
    if not (home / "bin/pip").exists():
        run(
            [sys.executable, "-m", "venv", "--clear", str(home)],
            network_environment(os.environ),
            "venv",
        )
    return [str(home / "bin/pip")]
