"""A worker's Python: which interpreter, where an environment lies, whether it is whole and proven.

Python 3.9 and the standard library, since it runs on workers before anything is installed there.
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
SEEN = Path("/run/tpufleet/envs")
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
NEEDED_MB = {"cpu": 1200, "tpu": 2500, "cuda": 9000}
CHIP_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
UV_DRAWING = " \u00d7\u2570\u2500\u25b6\u2502\u251c"
DOWNLOADING = "downloading what the lock file pins"
MEND = (
    "mend the lock file, or name an index that can be reached (jax_install_env), then "
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
    """Python or an environment can't be had; the text is one line for a person."""


def no_wheel(what: str) -> EnvError:
    """Say that no index has a wheel of a requirement, and what mends it."""
    return EnvError(
        f"no index that was asked has a wheel of {what} for this Python: "
        f"lock with uv pip compile --only-binary :all:, or {MEND}"
    )


def lock_digest(lock: str) -> str:
    """Give a lock file's SHA-256 in hex; white space around it doesn't count."""
    return hashlib.sha256(lock.strip().encode()).hexdigest()


def env_id(digest: str, minor: int) -> str:
    """Name the environment of a lock file (by its digest) under Python 3.``minor``."""
    return hashlib.sha256(f"{digest} 3.{minor}".encode()).hexdigest()[:16]


def python_minor(python: Path) -> int:
    """Tell the minor version of a Python 3 that really runs. Raises EnvError."""
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
            f"{python} does not run: ansible-playbook setup.yml --tags python mends it"
        ) from error
    if major != 3:
        raise EnvError(f"{python} is Python {major}, not 3")
    return minor


def interpreter(python: Path) -> dict:
    """Tell by what a compiled environment knows its interpreter: where it is, which build of which
    version, and on what system. Raises EnvError.
    """
    try:
        asked = subprocess.run(
            [str(python), "-c", INTERPRETER], capture_output=True, text=True, timeout=60, check=True
        )
        return json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise EnvError(
            f"{python} does not run: ansible-playbook setup.yml --tags python mends it"
        ) from error


def measure(env: Path) -> dict[str, int]:
    """Count an environment's files and their bytes, and apart from them those of its bytecode; its
    marker is left out, and what root may compile later (``env_install.compile_bytecode``)."""
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


def is_whole(env: Path, made: Mapping[str, object]) -> bool:
    """Tell whether an environment has all that its marker counts; older ones count less."""
    return all(made[what] == count for what, count in measure(env).items() if what in made)


def is_complete(env: Path) -> bool:
    """Tell whether an environment was made to its end, and is whole.

    Nobody waited for the disk when it was made. What a power cut took then is missing or too short
    (ext4.rst, "data=ordered"), so its files are counted once after each boot; ``SEEN``, which a
    boot clears, says for which that was done.
    """
    try:
        made = json.loads((env / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    whole = is_seen(env) or "files" not in made  # of a version that waited
    if not whole and is_whole(env, made):
        whole = True
        mark_seen(env)
    return whole


def is_seen(what: Path) -> bool:
    """Tell whether an environment was counted, or a cache begun, since the last boot."""
    return (SEEN / what.name).exists()


def mark_seen(what: Path) -> None:
    """Spare the others the counting; where that can't be, they count."""
    try:
        SEEN.mkdir(mode=0o755, parents=True, exist_ok=True)
        (SEEN / what.name).touch()
    except OSError:
        pass


def packages(lock: str) -> list[str]:
    """Name what a lock file pins, as ``name==version``."""
    return re.findall(r"^([A-Za-z0-9][A-Za-z0-9._-]*==[^\s;\\]+)", lock, flags=re.MULTILINE)


def check_room(folder: Path, needed_mb: int) -> None:
    """Refuse to begin what the disk has no room for. ``folder`` need not be there yet."""
    while not folder.exists():
        folder = folder.parent
    free_mb = shutil.disk_usage(folder).free // 1_000_000
    if free_mb < needed_mb:
        raise EnvError(
            f"no space left on {folder}: needs {needed_mb} MB, {free_mb} MB are free: "
            "free space, then run: ansible-playbook setup.yml"
        )


def network_environment(base: Mapping[str, str], ca_bundle: Path = CA_BUNDLE) -> dict[str, str]:
    """Let pip and uv trust what the system trusts: a company's own authority among it."""
    variables = dict(base)
    # TPU images preload tcmalloc for everyone; an interpreter it was not built for dies of it.
    variables.pop("LD_PRELOAD", None)
    if ca_bundle.is_file():
        variables.setdefault("PIP_CERT", str(ca_bundle))
        variables.setdefault("SSL_CERT_FILE", str(ca_bundle))
    variables.setdefault("UV_SYSTEM_CERTS", "true")
    variables["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return variables


def run(words: Sequence[str], env: Mapping[str, str], what: str) -> str:
    """Run a step of setup; a failure is an EnvError that says which step, and the tool's own
    words."""
    try:
        done = subprocess.run(
            list(words), env=dict(env), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise EnvError(f"{what}: {words[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise EnvError(f"{what}: {reason(done.stderr or done.stdout)}")
    return done.stdout


def reason(complaint: str) -> str:
    """Fold a tool's complaint to one line: its last lines hold the cause."""
    lines = [line.strip(UV_DRAWING) for line in complaint.splitlines() if line.strip()]
    if any("No space left on device" in line for line in lines):
        return "no space left on the disk: free space, then run: ansible-playbook setup.yml"
    return "; ".join(lines[-3:]) if lines else "no word of why"


def proof_environment(platform: str, chips: int) -> dict[str, str]:
    """Bound the proof to this one worker: on a slice libtpu would wait for all the others for
    ever."""
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


def prove(env: Path, platform: str, chips: int, seconds: int, user: str) -> dict:
    """Run JAX on this worker's own devices, as the trainer's user, and count them.

    Returns ``{jax, platform, devices}``. Raises EnvError with JAX's own last words.
    """
    late = f"JAX found no {platform} device in {seconds} s: another process may hold it"
    return ask_jax(env, PROOF, proof_environment(platform, chips), seconds, user, late)


def prove_slice(
    env: Path, platform: str, place: tuple[str, int, int], seconds: int, user: str
) -> dict:
    """Run JAX on the whole slice, together with its other workers, and add up over all of them.

    ``place`` is the coordinator (host:port), how many processes there are, and which this one is.
    Returns ``{devices, sum}``: the slice's devices, and one for each of them added up by the
    devices themselves. Raises EnvError.
    """
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}
    variables["JAX_PLATFORMS"] = platform
    variables["TPUFLEET_PROOF"] = json.dumps([*place, seconds])
    late = f"the slice's workers did not come together in {seconds} s"
    return ask_jax(env, SLICE_PROOF, variables, seconds + 15, user, late)


def ask_jax(
    env: Path, script: str, variables: Mapping[str, str], seconds: int, user: str, late: str
) -> dict:
    """Run a script as the trainer's user; its last line is JSON. Raises EnvError."""
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
        out, complaint = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise EnvError(late) from error
    if child.returncode != 0:
        raise EnvError(f"JAX does not run: {reason(complaint)}")
    return json.loads(out.strip().splitlines()[-1])
