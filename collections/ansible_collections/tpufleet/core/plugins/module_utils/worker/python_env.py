"""Python environments of a worker: names, checks for completeness, use and disk space."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .devices import text_of
from .os_errors import output_says_disk_is_full

COMPLETE = "complete.json"
CHECKED = Path("/run/tpufleet/envs")
_ENV_PATH = re.compile(r"/envs/([0-9a-f]{16})(?![0-9a-f])")
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
MIN_FREE_MB = 1200
"""Disk space in MB that an environment needs, without the packages in MIN_FREE_MB_FOR."""
MIN_FREE_MB_FOR = {"libtpu": 1300, "nvidia-": 7800, "torch": 2000}
"""Additional disk space in MB that an environment needs if a package's name starts with the key."""
UV_DRAWING = " \u00d7\u2570\u2500\u25b6\u2502\u251c"
DISK_FULL = "no space left on the disk: free space, then run: ansible-playbook setup.yml"
DOWNLOADING = "downloading the packages of the lock file"
FIX = (
    "Fix the lock file, set an index that the worker can reach (jax_install_env), or let the "
    "controller download the packages (jax_wheels_from: controller), then run: "
    "ansible-playbook setup.yml"
)
VERSION = "import json, sys, venv; print(json.dumps(sys.version_info[:2]))"
INTERPRETER = """
import json, os, platform, sys, sysconfig
print(json.dumps({
    "path": os.path.realpath(sys.executable),
    "version": sys.version,
    "platform": sysconfig.get_platform(),
    "libc": platform.libc_ver()[1],
}))
"""


class EnvError(Exception):
    """Python or an environment cannot be installed; the message is one line for the user.

    ``output`` is the error output of the program that failed, if one did.
    """

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def no_wheel(package: str) -> EnvError:
    """Return the error that no index has a wheel for ``package``."""
    return EnvError(
        f"no index has a wheel of {package} for this Python. "
        f"Lock with uv pip compile --only-binary :all:. {FIX}"
    )


def lock_digest(lock: str) -> str:
    """Return the SHA-256 of a lock file's text in hex, ignoring surrounding white space."""
    return hashlib.sha256(lock.strip().encode()).hexdigest()


def env_id(digest: str, minor: int) -> str:
    """Return the name of the environment for a lock file's digest and Python 3.``minor``."""
    return hashlib.sha256(f"{digest} 3.{minor}".encode()).hexdigest()[:16]


def python_minor(python: Path) -> int:
    """Return the minor version of a Python 3 interpreter, by running it. Raises EnvError."""
    major, minor = _run_python(python, VERSION)
    if major != 3:
        raise EnvError(f"{python} is Python {major}, not 3")
    return minor


def interpreter(python: Path) -> dict:
    """Return the path, version, platform and libc of an interpreter. Raises EnvError.

    An environment that is copied with its bytecode works only if all of these are the same on
    both workers.
    """
    return _run_python(python, INTERPRETER)


def _run_python(python: Path, program: str) -> Any:
    """Return the JSON value that a program prints in an interpreter. Raises EnvError."""
    try:
        result = subprocess.run(
            [str(python), "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        return json.loads(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise EnvError(
            f"{python} does not run. Install Python: ansible-playbook setup.yml --tags python"
        ) from error


def measure(env: Path) -> dict[str, int]:
    """Return the number and bytes of an environment's files, and the bytes of its bytecode.

    The marker file COMPLETE is not counted. The bytecode of packages' tests is not counted either,
    because Python writes it only when root imports the tests.
    """
    counts = {"files": 0, "bytes": 0, "bytecode": 0}
    for folder, _, names in os.walk(env):
        is_bytecode = folder.endswith("/__pycache__")
        if is_bytecode and "/tests/" in folder:
            continue
        for name in names:
            size = os.lstat(f"{folder}/{name}").st_size if name != COMPLETE else 0
            counts["bytecode" if is_bytecode else "bytes"] += size
            counts["files"] += not is_bytecode and name != COMPLETE
    return counts


def has_all_files(env: Path, marker: Mapping[str, object]) -> bool:
    """Return whether an environment's files match the counts in its ``marker``."""
    return measure(env).items() <= marker.items()


def is_complete(env: Path) -> bool:
    """Return whether an environment was installed completely and still has all its files.

    Installation does not sync files to disk, so a power cut can remove or truncate some (the
    kernel's ext4.rst, "data=ordered"). Therefore the files are counted once after each boot. The
    directory ``CHECKED``, which a boot empties, has a file for each environment that was counted.
    If files are missing, the file ``COMPLETE`` is removed: roles/setup_stamp checks only this file.
    """
    try:
        marker = json.loads((env / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not is_checked(env):
        if not has_all_files(env, marker):
            with suppress(OSError):
                (env / COMPLETE).unlink()
            return False
        mark_checked(env)
    return True


def is_checked(directory: Path) -> bool:
    """Return whether an environment was checked, or a cache created, since the last boot.

    ``directory`` is the directory of the environment or of the cache.
    """
    return (CHECKED / directory.name).exists()


def mark_checked(directory: Path) -> None:
    """Record that an environment or a cache needs no check until the next boot.

    ``directory`` is the directory of the environment or of the cache.
    """
    try:
        CHECKED.mkdir(mode=0o755, parents=True, exist_ok=True)
        (CHECKED / directory.name).touch()
    except OSError:
        pass


def env_names_in(texts: Iterable[str]) -> set[str]:
    """Return the names of the environments whose paths appear in any of ``texts``."""
    return {name for text in texts for name in _ENV_PATH.findall(text)}


def used_by_processes(proc: Path = Path("/proc")) -> set[str]:
    """Return the names of the environments from which a process was started or loaded a library."""
    return env_names_in(
        text
        for folder in proc.glob("[0-9]*")
        for text in (text_of(folder / "cmdline"), text_of(folder / "maps"))
    )


def used_by_runs(runs: Path, active: Iterable[str]) -> set[str]:
    """Return the names of the environments whose paths appear in the files of active runs.

    ``runs`` is the directory that contains a directory for each run.
    """
    return env_names_in(
        text_of(file) for run in active for file in (runs / run).glob("*") if file.is_file()
    )


def prunable(envs: Path, current: str, used: set[str], keep: int) -> list[Path]:
    """List the environments to remove from the directory ``envs``.

    Keeps the environments named ``current`` or in ``used``, and the ``keep`` newest besides
    ``current``.
    """
    installed = [
        path
        for path in envs.glob("*")
        if path.is_dir() and re.fullmatch(r"[0-9a-f]{16}", path.name)
    ]
    others = sorted(
        (path for path in installed if path.name != current),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    return [path for path in others[max(keep, 0) :] if path.name not in used]


def packages(lock: str) -> list[str]:
    """List the packages that a lock file pins, as ``name==version``."""
    return re.findall(r"^([A-Za-z0-9][A-Za-z0-9._-]*==[^\s;\\]+)", lock, flags=re.MULTILINE)


def needed_mb(lock: str) -> int:
    """Return the disk space in MB that the installation of a lock file needs."""
    pinned = packages(lock)
    additional_mb = (
        mb
        for name, mb in MIN_FREE_MB_FOR.items()
        if any(package.startswith(name) for package in pinned)
    )
    return MIN_FREE_MB + sum(additional_mb)


def check_free_space(folder: Path, needed_mb: int) -> None:
    """Raise EnvError if the disk of ``folder`` has less than ``needed_mb`` MB free.

    ``folder`` need not exist.
    """
    while not folder.exists():
        folder = folder.parent
    free_mb = shutil.disk_usage(folder).free // 1_000_000
    if free_mb < needed_mb:
        raise EnvError(
            f"no space left on {folder}: needs {needed_mb} MB, {free_mb} MB are free. "
            "Free space, then run: ansible-playbook setup.yml"
        )


def network_environment(base: Mapping[str, str], ca_bundle: Path = CA_BUNDLE) -> dict[str, str]:
    """Return ``base`` with variables that make pip and uv trust the system's CA certificates.

    The system may trust a company's own certificate authority. LD_PRELOAD is removed.
    """
    variables = dict(base)
    # TPU images preload tcmalloc, which crashes an interpreter that it was not built for.
    variables.pop("LD_PRELOAD", None)
    if ca_bundle.is_file():
        variables.setdefault("PIP_CERT", str(ca_bundle))
        variables.setdefault("SSL_CERT_FILE", str(ca_bundle))
    variables.setdefault("UV_SYSTEM_CERTS", "true")
    variables["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return variables


def run(command: Sequence[str], env: Mapping[str, str], step: str) -> str:
    """Run a command and return its output.

    ``step`` names the command for the user. Raises EnvError with this name and the command's error
    output, which is in English, so that it can be searched.
    """
    variables = {**env, "LC_ALL": "C.UTF-8"}
    try:
        result = subprocess.run(
            list(command), env=variables, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise EnvError(f"{step}: {command[0]}: {error.strerror}") from error
    if result.returncode != 0:
        output = result.stderr or result.stdout
        raise EnvError(f"{step}: {error_summary(output)}", output)
    return result.stdout


def error_summary(output: str) -> str:
    """Return the last lines of a tool's output as one line; DISK_FULL if the disk is full."""
    return DISK_FULL if output_says_disk_is_full(output) else last_lines(output)


def last_lines(output: str) -> str:
    """Return the last three lines of a program's output as one line."""
    lines = [line.strip(UV_DRAWING) for line in output.splitlines() if line.strip()]
    return "; ".join(lines[-3:]) if lines else "no error output"
