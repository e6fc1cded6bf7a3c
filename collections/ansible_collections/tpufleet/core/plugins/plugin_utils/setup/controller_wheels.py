"""The wheels of a lock file for workers that have no way out: the controller downloads them, once,
whatever it is itself, and packs them."""

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
"""Of what wheels are still built for: manylinux2014 (PEP 599)."""


@dataclass(frozen=True)
class Target:
    """What wheels are for: CPython 3.``minor`` on Linux, with its machine and its glibc 2.x."""

    minor: int
    machine: str
    glibc: int

    def markers(self) -> dict[str, str]:
        """Give the values of environment markers there (PEP 508)."""
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
        """Say it in pip's words; pip takes each platform literally (PEP 600), the newest first."""
        words = ["--python-version", f"3.{self.minor}", "--implementation", "cp"]
        for abi in (f"cp3{self.minor}", "abi3", "none"):
            words += ["--abi", abi]
        for glibc in range(self.glibc, _OLDEST_GLIBC, -1):
            words += ["--platform", f"manylinux_2_{glibc}_{self.machine}"]
        return [*words, "--platform", f"manylinux2014_{self.machine}"]


def pinned_for(target: Target, lock: str) -> str:
    """Give the requirements of a lock file that hold for a target, without their markers.

    pip would hold the markers against the machine that it runs on itself.
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


def packed(lock: str, target: Target, cache: Path, env: Mapping[str, str]) -> Path:
    """Give a tar file of the wheels, made by the first who asks.

    Args:
        lock: the lock file's text.
        target: what the wheels are for.
        cache: a directory of the controller's.
        env: more variables for pip.

    Raises:
        EnvError: they can't be had; pip's own reason. OSError.
    """
    name = f"{lock_digest(lock)[:16]}-3.{target.minor}-{target.machine}"
    pack = cache / "packs" / f"{name}.tar"
    pack.parent.mkdir(parents=True, exist_ok=True)
    with _alone(pack.parent / "lock"):
        if pack.is_file():
            return pack
        folder = cache / "wheels" / name
        try:
            download(folder, pinned_for(target, lock), _pip(cache), env, target.options())
        except EnvError as error:
            raise EnvError(f"the controller: {error}") from None
        new = pack.with_suffix(".new")
        with tarfile.open(new, "w") as archive:
            for wheel in sorted(folder.glob("*.whl")):
                archive.add(wheel, wheel.name)
        new.replace(pack)
    return pack


def _pip(cache: Path) -> list[str]:
    """Give the words for a pip of the controller's own, made from what comes with Python."""
    home = cache / f"pip-{sys.version_info.major}.{sys.version_info.minor}"
    if not (home / "bin/pip").exists():
        run(
            [sys.executable, "-m", "venv", "--clear", str(home)],
            network_environment(os.environ),
            "venv",
        )
    return [str(home / "bin/pip")]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let the forks of a play, and other controllers' plays, wait for who was first."""
    with path.open("w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
