"""Python environments of a worker: interpreter, name, completeness, and a test of JAX.

Python 3.9 and the standard library only, because it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

COMPLETE = "complete.json"
CHECKED = Path("/run/tpufleet/envs")
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
NEEDED_MB = {"cpu": 1200, "tpu": 2500, "cuda": 9000}
CHIP_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
UV_DRAWING = " \u00d7\u2570\u2500\u25b6\u2502\u251c"
DOWNLOADING = "downloading what the lock file pins"
FIX = (
    "Fix the lock file, or set an index that the worker can reach (jax_install_env), then run: "
    "ansible-playbook setup.yml"
)
PROOF = """
import json, jax
print(json.dumps({
    "jax": jax.__version__,
    "platform": jax.local_devices()[0].platform,
    "devices": jax.local_device_count(),
}))
"""
INTERPRETER = """
import json, os, platform, sys, sysconfig
print(json.dumps({
    "path": os.path.realpath(sys.executable),
    "version": sys.version,
    "platform": sysconfig.get_platform(),
    "libc": platform.libc_ver()[1],
}))
"""
SLICE_PROOF = """
import json, os, jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
where, count, mine, seconds = json.loads(os.environ["TPUFLEET_PROOF"])
jax.distributed.initialize(where, count, mine, initialization_timeout=seconds)
mesh = Mesh(jax.devices(), ("all",))
ones = jax.jit(
    lambda: jnp.ones(jax.device_count()), out_shardings=NamedSharding(mesh, PartitionSpec("all"))
)()
total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(ones)
print(json.dumps({"devices": jax.device_count(), "sum": float(total)}))
"""


class EnvError(Exception):
    """Python or an environment cannot be installed; the message is one line for the user."""


def no_wheel(what: str) -> EnvError:
    """Return the error for a package that no index has a wheel for."""
    return EnvError(
        f"no index has a wheel of {what} for this Python. "
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
    try:
        asked = subprocess.run(
            [str(python), "-c", "import sys, venv; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        major, minor = (int(part) for part in asked.stdout.split())
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise EnvError(
            f"{python} does not run. Install Python: ansible-playbook setup.yml --tags python"
        ) from error
    if major != 3:
        raise EnvError(f"{python} is Python {major}, not 3")
    return minor


def interpreter(python: Path) -> dict:
    """Return the path, version, platform and libc of an interpreter. Raises EnvError.

    An environment that is copied with its bytecode works only if all of these are equal.
    """
    try:
        asked = subprocess.run(
            [str(python), "-c", INTERPRETER], capture_output=True, text=True, timeout=60, check=True
        )
        return json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise EnvError(
            f"{python} does not run. Install Python: ansible-playbook setup.yml --tags python"
        ) from error


def measure(env: Path) -> dict[str, int]:
    """Return the number and bytes of an environment's files, and the bytes of its bytecode.

    The marker is not counted, nor is bytecode of the packages' tests, which root may write later.
    """
    found = {"files": 0, "bytes": 0, "bytecode": 0}
    for folder, _, names in os.walk(env):
        compiled = folder.endswith("/__pycache__")
        if compiled and "/tests/" in folder:
            continue
        for name in names:
            size = os.lstat(f"{folder}/{name}").st_size if name != COMPLETE else 0
            found["bytecode" if compiled else "bytes"] += size
            found["files"] += not compiled and name != COMPLETE
    return found


def has_all_files(env: Path, made: Mapping[str, object]) -> bool:
    """Return whether an environment's files match the counts in its marker ``made``.

    Markers of older versions have fewer counts; only counts in the marker are compared.
    """
    return all(made[what] == count for what, count in measure(env).items() if what in made)


def is_complete(env: Path) -> bool:
    """Return whether an environment was installed completely and still has all its files.

    Installation does not sync files to disk, so a power cut can remove or truncate some
    (ext4.rst, "data=ordered"). Therefore the files are counted once after each boot. The directory
    ``CHECKED``, which a boot clears, lists the environments that were counted.
    """
    try:
        made = json.loads((env / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    whole = is_checked(env) or "files" not in made  # older versions synced the files
    if not whole and has_all_files(env, made):
        whole = True
        mark_checked(env)
    return whole


def is_checked(what: Path) -> bool:
    """Return whether an environment was checked, or a cache created, since the last boot."""
    return (CHECKED / what.name).exists()


def mark_checked(what: Path) -> None:
    """Record that an environment or a cache needs no check until the next boot."""
    try:
        CHECKED.mkdir(mode=0o755, parents=True, exist_ok=True)
        (CHECKED / what.name).touch()
    except OSError:
        pass


def packages(lock: str) -> list[str]:
    """List the packages that a lock file pins, as ``name==version``."""
    return re.findall(r"^([A-Za-z0-9][A-Za-z0-9._-]*==[^\s;\\]+)", lock, flags=re.MULTILINE)


def check_free_space(folder: Path, needed_mb: int) -> None:
    """Raise EnvError if the disk of ``folder`` has less than ``needed_mb`` MB free.

    ``folder`` need not exist.
    """
    while not folder.exists():
        folder = folder.parent
    free_mb = shutil.disk_usage(folder).free // 1_000_000
    if free_mb < needed_mb:
        raise EnvError(
            f"no space left on {folder}: needs {needed_mb} MB, {free_mb} MB are free: "
            "free space, then run: ansible-playbook setup.yml"
        )


def network_environment(base: Mapping[str, str], ca_bundle: Path = CA_BUNDLE) -> dict[str, str]:
    """Return variables with which pip and uv trust the system's CA certificates.

    These certificates may include a company's own certificate authority.
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


def run(words: Sequence[str], env: Mapping[str, str], what: str) -> str:
    """Run a command and return its output. Raises EnvError with ``what`` and the error output."""
    try:
        done = subprocess.run(
            list(words), env=dict(env), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise EnvError(f"{what}: {words[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise EnvError(f"{what}: {error_summary(done.stderr or done.stdout)}")
    return done.stdout


def error_summary(output: str) -> str:
    """Return the last lines of a tool's output as one line."""
    lines = [line.strip(UV_DRAWING) for line in output.splitlines() if line.strip()]
    if any("No space left on device" in line for line in lines):
        return "no space left on the disk: free space, then run: ansible-playbook setup.yml"
    return "; ".join(lines[-3:]) if lines else "no error output"


def proof_environment(platform: str, chips: int) -> dict[str, str]:
    """Return environment variables that limit JAX to this worker.

    On a slice of several workers, libtpu would otherwise wait forever for the others.
    """
    variables = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "JAX_PLATFORMS": platform,
    }
    if platform == "tpu":
        variables["TPU_PROCESS_BOUNDS"] = "1,1,1"
        variables["TPU_CHIPS_PER_PROCESS_BOUNDS"] = CHIP_BOUNDS.get(chips, "2,2,1")
        variables["TPU_VISIBLE_CHIPS"] = ",".join(str(chip) for chip in range(chips or 4))
    return variables


def prove_worker(env: Path, platform: str, chips: int, seconds: int, user: str) -> dict:
    """Run JAX on this worker's devices as ``user`` and return ``{jax, platform, devices}``.

    Raises EnvError with the last lines of JAX's output.
    """
    late = f"JAX found no {platform} device within {seconds} s: another process may hold it"
    return run_jax(env, PROOF, proof_environment(platform, chips), seconds, user, late)


def prove_slice(
    env: Path, platform: str, place: tuple[str, int, int], seconds: int, user: str
) -> dict:
    """Run JAX on all workers of a slice and return ``{devices, sum}``.

    ``place`` is the coordinator (host:port), the number of processes and this process's id. The
    devices compute ``sum`` together: each adds 1. Raises EnvError.
    """
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}
    variables["JAX_PLATFORMS"] = platform
    variables["TPUFLEET_PROOF"] = json.dumps([*place, seconds])
    late = f"rendezvous failed: not all workers of the slice arrived within {seconds} s"
    return run_jax(env, SLICE_PROOF, variables, seconds + 15, user, late)


def run_jax(
    env: Path, script: str, variables: Mapping[str, str], seconds: int, user: str, late: str
) -> dict:
    """Run a script as a user and return its last output line, parsed as JSON.

    Raises EnvError; its message is ``late`` if the script takes longer than ``seconds``.
    """
    account = pwd.getpwnam(user)
    child = subprocess.Popen(
        [str(env / "bin/python"), "-c", script],
        env=dict(variables),
        cwd="/",
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=os.getgrouplist(user, account.pw_gid),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise EnvError(late) from error
    if child.returncode != 0:
        raise EnvError(f"JAX does not run: {error_summary(errors)}")
    return json.loads(out.strip().splitlines()[-1])
