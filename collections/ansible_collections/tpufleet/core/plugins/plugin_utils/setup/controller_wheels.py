"""Archives of wheels that the controller downloads for workers without internet access."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from ...module_utils.worker.python_env import EnvError, lock_digest, network_environment, run
from ...module_utils.worker.wheels import download

_OLDEST_GLIBC = 17
"""The minor version of glibc of manylinux2014 (PEP 599), the oldest target of current wheels."""


@dataclass(frozen=True)
class Target:
    """The Python of a worker: CPython 3.``minor`` on Linux, its machine and glibc 2.``glibc``."""

    minor: int
    machine: str
    glibc: int

    def markers(self) -> dict[str, str]:
        """Return the values of environment markers (PEP 508)."""
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
        """Return options of pip, which compares platforms literally (PEP 600); the newest first."""
        words = ["--python-version", f"3.{self.minor}", "--implementation", "cp"]
        for abi in (f"cp3{self.minor}", "abi3", "none"):
            words += ["--abi", abi]
        for glibc in range(self.glibc, _OLDEST_GLIBC, -1):
            words += ["--platform", f"manylinux_2_{glibc}_{self.machine}"]
        return [*words, "--platform", f"manylinux2014_{self.machine}"]


def requirements_for(target: Target, lock: str) -> str:
    """Return the requirements of a lock file for a target, without markers.

    pip would evaluate the markers for the controller.
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
            kept.append(line)  # an option, such as an index
            continue
        if wanted.marker is None or wanted.marker.evaluate(target.markers()):
            wanted.marker = None
            kept.append(" ".join([str(wanted), *hashes]))
    return "\n".join(kept) + "\n"


def wheels_archive(lock: str, target: Target, cache: Path, env: Mapping[str, str]) -> Path:
    """Return the path of a tar file of wheels, which the first caller creates.

    Args:
        lock: the text of the lock file.
        target: the worker's Python.
        cache: a directory of the controller.
        env: additional variables for pip.

    Raises:
        EnvError: pip failed; the text is its error. OSError.
    """
    name = f"{lock_digest(lock)[:16]}-3.{target.minor}-{target.machine}"
    pack = cache / "packs" / f"{name}.tar"
    pack.parent.mkdir(parents=True, exist_ok=True)
    with _locked(pack.parent / "lock"):
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
    """Return the command of a pip, from a virtual environment that is created once."""
    home = cache / f"pip-{sys.version_info.major}.{sys.version_info.minor}"
    if not (home / "bin/pip").exists():
        run(
            [sys.executable, "-m", "venv", "--clear", str(home)],
            network_environment(os.environ),
            "venv",
        )
    return [str(home / "bin/pip")]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock against other forks and plays."""
    with path.open("w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
