"""Installation of an environment from a lock file by uv, from a package index or from wheels."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .from_leader import FromLeaderError, pull
from .os_errors import output_says_disk_is_full
from .python_env import (
    COMPLETE,
    DISK_FULL,
    DOWNLOADING,
    FIX,
    EnvError,
    error_summary,
    interpreter,
    is_checked,
    mark_checked,
    measure,
    network_environment,
    no_wheel,
    packages,
    run,
)

UV_CACHE = "uv"
"""Name of uv's cache in the directory of downloads, which workers can copy from the leader."""
_REQUIRED = re.compile(r"you require (?P<package>[^\s,]+==[^\s,]+)")
_NEEDED = re.compile(r"\bdepends? on\b")
_REFUSED = re.compile(r"hint: (?P<message>.*authentication credentials.*\S)")
_SPLIT = re.compile(r" for split \(markers: .*\)$")
_STEP = re.compile(r"^\s*(?P<kind>error|cause): (?P<message>.*\S)", flags=re.MULTILINE)


def install_from_index(
    env: Path,
    lock: str,
    python: Path,
    uv: Path,
    extra_env: Mapping[str, str],
    cache: Path,
    offline: bool = False,
) -> None:
    """Install an environment from a package index. uv checks the lock file's hashes.

    The environment's files are hard links to files in uv's cache. A cache that was written before
    the last boot is removed first: a power cut may have damaged its files, which uv does not check.

    Args:
        env: the directory to create.
        lock: the text of the lock file.
        python: the interpreter of the environment.
        uv: the program uv.
        extra_env: environment variables for uv, such as the URL of an index.
        cache: uv's cache; packages in it are not downloaded again.
        offline: whether to use only the cache, without network access.

    Raises EnvError, OSError.
    """
    if not is_checked(cache):
        shutil.rmtree(cache, ignore_errors=True)
        mark_checked(cache)
    variables = index_environment(extra_env)
    variables["UV_CACHE_DIR"] = str(cache)
    if offline:
        variables["UV_OFFLINE"] = "1"
    try:
        begin(env, python, uv, variables)
        install(env, lock, uv, variables, "--only-binary", ":all:")
    except InstallError as error:
        raise download_error(without_secrets(str(error), variables)) from None
    except EnvError as error:
        raise EnvError(without_secrets(str(error), variables)) from None
    finish(env, lock, python)


def install_from_wheels(
    env: Path, lock: str, python: Path, uv: Path, wheels: Path, extra_env: Mapping[str, str]
) -> None:
    """Install an environment from the directory ``wheels``, without network access.

    The other arguments are those of ``install_from_index``. uv checks each wheel against the lock
    file's hashes. Raises EnvError, OSError.
    """
    variables = index_environment(extra_env)
    # Use a temporary cache on the environment's file system, so that uv links files instead of
    # copying them.
    unpacked = env.parent / f".{env.name}.cache"
    variables.update(UV_CACHE_DIR=str(unpacked), UV_OFFLINE="1")
    begin(env, python, uv, variables)
    try:
        install(env, lock, uv, variables, "--no-index", "--find-links", str(wheels))
    except InstallError as error:
        raise EnvError(f"uv pip install: {error_summary(str(error))}") from None
    shutil.rmtree(unpacked, ignore_errors=True)
    finish(env, lock, python)


class InstallError(Exception):
    """``uv pip install`` failed; the message is uv's output, which has several lines."""


def begin(env: Path, python: Path, uv: Path, variables: Mapping[str, str]) -> None:
    """Create an empty environment in place of the directory ``env``. Raises EnvError."""
    if env.exists():
        shutil.rmtree(env)
    env.parent.mkdir(parents=True, exist_ok=True)
    run([str(uv), "venv", "--no-project", "--python", str(python), str(env)], variables, "uv venv")


def install(env: Path, lock: str, uv: Path, variables: Mapping[str, str], *source: str) -> None:
    """Install the packages that a lock file pins, checking their hashes. Raises InstallError.

    ``lock`` is the lock file's text. ``source`` are options for uv that say where to find packages.
    """
    command = [str(uv), "pip", "install", "--python", str(env / "bin/python"), "--require-hashes"]
    with tempfile.NamedTemporaryFile("w", suffix=".lock", encoding="utf-8") as file:
        file.write(lock)
        file.flush()
        result = subprocess.run(
            [*command, *source, "-r", file.name],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode != 0:
        raise InstallError(result.stderr or result.stdout)


def finish(env: Path, lock: str, python: Path) -> None:
    """Compile an environment's bytecode, then write the file that marks it as complete."""
    compile_bytecode(env)
    (env / "requirements.lock").write_text(lock, encoding="utf-8")
    marker = {"packages": packages(lock), "python": str(python.resolve())}
    marker.update(made_by=interpreter(python), **measure(env))
    (env / COMPLETE).write_text(json.dumps(marker) + "\n", encoding="utf-8")
    mark_checked(env)


def compile_bytecode(env: Path) -> None:
    """Compile the modules of an environment, except the tests of its packages.

    Otherwise each start of a trainer would compile the modules again, because the trainer's user
    cannot write to the environment. Files that are not valid Python, such as templates, are
    skipped.
    """
    library = env / "lib"
    # Without -S, Python would run the code in *.pth files of packages as root.
    command = [str(env / "bin/python"), "-I", "-S", "-m", "compileall", "-qq", "-j", "0"]
    command += ["-x", f"^{re.escape(str(library))}/.*/tests/", str(library)]
    subprocess.run(
        command,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def download_error(output: str) -> EnvError:
    """Return a one-line error for uv's output, with the cause and, if possible, the fix."""
    if output_says_disk_is_full(output):
        return EnvError(f"{DOWNLOADING}: {DISK_FULL}")
    if refused := _REFUSED.search(output):
        return EnvError(f"{DOWNLOADING}: {refused['message']}. {FIX}")
    missing = _REQUIRED.search(" ".join(output.split()))
    if missing and not _NEEDED.search(output):
        return no_wheel(missing["package"])
    return EnvError(f"{DOWNLOADING}: {failed_steps(output)}. {FIX}")


def failed_steps(output: str) -> str:
    """Return the first and last message of uv's error chain, as one line without a full stop."""
    steps = [_SPLIT.sub("", step["message"].rstrip(".")) for step in _STEP.finditer(output)]
    return ": ".join(dict.fromkeys([steps[0], steps[-1]])) if steps else error_summary(output)


def without_secrets(output: str, env: Mapping[str, str]) -> str:
    """Return uv's output with asterisks in place of addresses that may have a password.

    If an environment variable should be a URL but cannot be parsed, uv's output quotes the value.
    ``env`` are uv's environment variables; only addresses in their values are replaced.
    """
    for word in " ".join(map(str, env.values())).split():
        after_scheme = word.rpartition("://")[2]
        if "@" in after_scheme[1:]:  # the address has the form USER:PASSWORD@HOST
            output = output.replace(after_scheme, "********")
    return output


def index_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for uv: those of this process, overridden by ``env``.

    If the variables set package indexes for pip only, uv uses these indexes too.
    """
    variables = network_environment({**os.environ, **env})
    own_indexes = {"UV_INDEX_URL", "UV_DEFAULT_INDEX"} & set(variables)
    if variables.get("PIP_INDEX_URL") and not own_indexes:
        variables["UV_DEFAULT_INDEX"] = variables["PIP_INDEX_URL"]
    if variables.get("PIP_EXTRA_INDEX_URL"):
        variables.setdefault("UV_EXTRA_INDEX_URL", variables["PIP_EXTRA_INDEX_URL"])
    if variables.get("UV_EXTRA_INDEX_URL") or variables.get("UV_INDEX"):
        # As pip does, accept a pinned file from any index, because its hash identifies it.
        variables.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    # uv wraps its output at COLUMNS, but download_error() searches it line by line.
    variables.update(UV_NO_PROGRESS="1", UV_LINK_MODE="hardlink", COLUMNS="10000")
    return variables


def copy_cache(cache: Path) -> None:
    """Copy uv's cache from the leader to ``cache``; remove ``cache`` if that fails.

    Raises FromLeaderError.
    """
    cache.mkdir(parents=True, exist_ok=True)
    try:
        pull("cache", UV_CACHE, cache)
    except FromLeaderError:
        shutil.rmtree(cache, ignore_errors=True)
        raise
    mark_checked(cache)


def remove_unused(cache: Path) -> None:
    """Remove packages from uv's cache if no environment has a hard link to their files.

    uv stores packages in ``archive-v0/…``. If a package is missing there, uv downloads it again.
    """
    for package in cache.glob("archive-v*/*"):
        files = (f"{folder}/{name}" for folder, _, names in os.walk(package) for name in names)
        if not any(os.lstat(file).st_nlink > 1 for file in files):
            shutil.rmtree(package, ignore_errors=True)
