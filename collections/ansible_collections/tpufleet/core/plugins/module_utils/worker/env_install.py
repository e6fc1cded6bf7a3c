"""An environment made from a lock file: by uv, from an index or from wheels that were sent.

Python 3.9 and the standard library, since it runs on workers before anything is installed there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .from_leader import FOLDER, FromLeaderError, pull
from .python_env import (
    COMPLETE,
    DOWNLOADING,
    MEND,
    EnvError,
    interpreter,
    is_seen,
    mark_seen,
    measure,
    network_environment,
    no_wheel,
    packages,
    reason,
    run,
)

UV_CACHE = "uv"
"""Where uv's cache lies below the served directory ``cache``."""
_REQUIRED = re.compile(r"you require (?P<what>[^\s,]+==[^\s,]+)")
_NEEDED = re.compile(r"\bdepends? on\b")
_REFUSED = re.compile(r"hint: (?P<said>.*authentication credentials.*\S)")
_STEP = re.compile(r"^\s*(?P<kind>error|cause): (?P<said>.*\S)", flags=re.MULTILINE)


def install_from_index(
    env: Path,
    lock: str,
    python: Path,
    uv: Path,
    extra_env: Mapping[str, str],
    cache: Path,
    offline: bool = False,
) -> None:
    """Make an environment of a lock file's wheels, which uv downloads and holds against its hashes.

    What uv has in ``cache`` it doesn't download: what another lock file pins as well, and what came
    before an interruption. ``offline`` takes nothing but that. The environment shares its files
    with the cache. Nobody waits for the disk, and uv doesn't look at them again: a cache from
    before the last boot goes, since a power cut may have taken some of it. Raises EnvError,
    OSError.
    """
    if not is_seen(cache):
        shutil.rmtree(cache, ignore_errors=True)
        mark_seen(cache)
    variables = index_environment(extra_env)
    variables["UV_CACHE_DIR"] = str(cache)
    if offline:
        variables["UV_OFFLINE"] = "1"
    try:
        begin(env, python, uv, variables)
        install(env, lock, uv, variables, "--only-binary", ":all:")
    except InstallError as error:
        raise in_one_line(without_secrets(str(error), extra_env)) from None
    except EnvError as error:
        raise EnvError(without_secrets(str(error), extra_env)) from None
    finish(env, lock, python)


def install_from_wheels(
    env: Path, lock: str, python: Path, uv: Path, wheels: Path, extra_env: Mapping[str, str]
) -> None:
    """Make an environment of the wheels in a directory, each held against the lock's hashes.

    Nothing is asked of any network. Raises EnvError, OSError.
    """
    variables = index_environment(extra_env)
    # On the environment's own file system, so that files are linked, not copied; gone afterwards.
    unpacked = env.parent / f".{env.name}.cache"
    variables.update(UV_CACHE_DIR=str(unpacked), UV_OFFLINE="1")
    begin(env, python, uv, variables)
    try:
        install(env, lock, uv, variables, "--no-index", "--find-links", str(wheels))
    except InstallError as error:
        raise EnvError(f"uv pip install: {reason(str(error))}") from None
    shutil.rmtree(unpacked, ignore_errors=True)
    finish(env, lock, python)


class InstallError(Exception):
    """uv refused; the text is its own, of many lines."""


def begin(env: Path, python: Path, uv: Path, variables: Mapping[str, str]) -> None:
    """Make an empty environment; what a broken earlier try left is removed. Raises EnvError."""
    if env.exists():
        shutil.rmtree(env)
    env.parent.mkdir(parents=True, exist_ok=True)
    run([str(uv), "venv", "--no-project", "--python", str(python), str(env)], variables, "uv venv")


def install(env: Path, lock: str, uv: Path, variables: Mapping[str, str], *source: str) -> None:
    """Let uv install what a lock file pins, all of it with hashes. Raises InstallError."""
    words = [str(uv), "pip", "install", "--python", str(env / "bin/python"), "--require-hashes"]
    with tempfile.NamedTemporaryFile("w", suffix=".lock", encoding="utf-8") as file:
        file.write(lock)
        file.flush()
        done = subprocess.run(
            [*words, *source, "-r", file.name],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise InstallError(done.stderr or done.stdout)


def finish(env: Path, lock: str, python: Path) -> None:
    """Compile an environment and mark it as complete; the marker is written last."""
    compile_bytecode(env)
    (env / "requirements.lock").write_text(lock, encoding="utf-8")
    marker = {"packages": packages(lock), "python": str(python.resolve())}
    marker.update(made_by=interpreter(python), **measure(env))
    (env / COMPLETE).write_text(json.dumps(marker) + "\n", encoding="utf-8")
    mark_seen(env)


def compile_bytecode(env: Path) -> None:
    """Compile what an environment holds, but for the packages' own tests, which no run imports.

    The trainer's user may not write there, so it is now or at each start again. What is no Python
    of this version, as some packages' templates, stays as it is.
    """
    library = env / "lib"
    words = [str(env / "bin/python"), "-I", "-m", "compileall", "-qq", "-j", "0"]
    words += ["-x", f"^{re.escape(str(library))}/.*/tests/", str(library)]
    subprocess.run(
        words,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def in_one_line(complaint: str) -> EnvError:
    """Fold what uv says of a download: the step that failed, and the last of its causes."""
    if "No space left on device" in complaint:
        return EnvError(f"{DOWNLOADING}: {reason(complaint)}")
    if refused := _REFUSED.search(complaint):
        return EnvError(f"{DOWNLOADING}: {refused['said']}: {MEND}")
    missing = _REQUIRED.search(" ".join(complaint.split()))
    if missing and not _NEEDED.search(complaint):
        return no_wheel(missing["what"])
    steps = [found["said"] for found in _STEP.finditer(complaint)]
    said = ": ".join(dict.fromkeys([steps[0], steps[-1]])) if steps else reason(complaint)
    return EnvError(f"{DOWNLOADING}: {said}: {MEND}")


def without_secrets(complaint: str, env: Mapping[str, str]) -> str:
    """Leave an address with a password out of what is said: uv shows one that it can't read."""
    for value in env.values():
        if "@" in str(value):
            complaint = complaint.replace(str(value), "********")
    return complaint


def index_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Give uv's variables; an index that is told to pip holds for uv as well."""
    variables = network_environment({**os.environ, **env})
    own = {"UV_INDEX_URL", "UV_DEFAULT_INDEX"} & set(variables)
    if variables.get("PIP_INDEX_URL") and not own:
        variables["UV_DEFAULT_INDEX"] = variables["PIP_INDEX_URL"]
    if variables.get("PIP_EXTRA_INDEX_URL"):
        variables.setdefault("UV_EXTRA_INDEX_URL", variables["PIP_EXTRA_INDEX_URL"])
    if variables.get("UV_EXTRA_INDEX_URL") or variables.get("UV_INDEX"):
        # As pip has it: a pin may come from any of them, since its hash says what it is.
        variables.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    # uv breaks its lines at COLUMNS, and what it says is read by the line.
    variables.update(UV_NO_PROGRESS="1", UV_LINK_MODE="hardlink", COLUMNS="10000")
    return variables


def take_cache(cache: Path, folder: Path = FOLDER) -> None:
    """Have what uv has downloaded on the leader. Raises FromLeaderError."""
    cache.mkdir(parents=True, exist_ok=True)
    try:
        pull("cache", UV_CACHE, cache, folder=folder)
    except FromLeaderError:
        shutil.rmtree(cache, ignore_errors=True)
        raise
    mark_seen(cache)


def drop_unused(cache: Path) -> None:
    """Remove from uv's cache what no environment has: of those that do, files have a second name.

    Where a package lies is of uv's own ("archive-v0/…"); one that it finds gone it downloads.
    """
    for package in cache.glob("archive-v*/*"):
        files = (f"{here}/{name}" for here, _, names in os.walk(package) for name in names)
        if not any(os.lstat(file).st_nlink > 1 for file in files):
            shutil.rmtree(package, ignore_errors=True)
