"""Tar files of wheels for workers without internet access; the controller downloads the wheels."""

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
"""Minor version of the oldest glibc that wheels may need: 2.17, that of manylinux2014 (PEP 599)."""


@dataclass(frozen=True)
class Target:
    """The Python platform of a worker: CPython 3.``minor``, its machine type, glibc 2.``glibc``."""

    minor: int
    machine: str
    glibc: int

    def markers(self) -> dict[str, str]:
        """Return the variables of environment markers (PEP 508) with their values on the worker."""
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

        The options must also list older platforms, because pip accepts only wheels for the listed
        platforms.
        """
        arguments = ["--python-version", f"3.{self.minor}", "--implementation", "cp"]
        for abi in (f"cp3{self.minor}", "abi3", "none"):
            arguments += ["--abi", abi]
        for glibc in range(self.glibc, _OLDEST_GLIBC, -1):
            arguments += ["--platform", f"manylinux_2_{glibc}_{self.machine}"]
        return [*arguments, "--platform", f"manylinux2014_{self.machine}"]


def requirements_for(target: Target, lock: str) -> str:
    """Return the requirements of a lock file that apply to a target, without their markers.

    The markers are removed because pip would evaluate them for the controller. ``lock`` is the text
    of the file.
    """
    output_lines = []
    lines = re.sub(r"\\\n\s*", " ", lock).splitlines()
    for line in (line.strip() for line in lines):
        if not line or line.startswith("#"):
            continue
        text, *hashes = re.split(r"\s+(?=--hash=)", line)
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            output_lines.append(line)  # keep lines with pip options, such as --index-url
            continue
        if requirement.marker is None or requirement.marker.evaluate(target.markers()):
            requirement.marker = None
            output_lines.append(" ".join([str(requirement), *hashes]))
    return "\n".join(output_lines) + "\n"


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
    archive_path = cache / "packs" / f"{name}.tar"
    with locked_folder(archive_path.parent):
        if archive_path.is_file():
            return archive_path
        folder = cache / "wheels" / name
        try:
            download(folder, requirements_for(target, lock), _pip(cache), env, target.options())
        except EnvError as error:
            raise EnvError(f"the controller: {error}") from None
        new_path = archive_path.with_suffix(".new")
        with tarfile.open(new_path, "w") as archive:
            for wheel in sorted(folder.glob("*.whl")):
                archive.add(wheel, wheel.name)
        new_path.replace(archive_path)
    return archive_path


def _pip(cache: Path) -> list[str]:
    """Return the command of pip in the virtual environment in ``cache``; create it on first use."""
    venv = cache / f"pip-{sys.version_info.major}.{sys.version_info.minor}"
    if not (venv / "bin/pip").exists():
        run(
            [sys.executable, "-m", "venv", "--clear", str(venv)],
            network_environment(os.environ),
            "venv",
        )
    return [str(venv / "bin/pip")]
