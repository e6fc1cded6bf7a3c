"""Lock files of the workers' environment that the controller makes from a user's requirements."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible.errors import AnsibleFilterError
from packaging.requirements import InvalidRequirement, Requirement

from ...module_utils.worker.env_install import failed_steps, index_environment, without_secrets
from .user_path import user_path

PYTHON = "3.12"
"""The oldest Python of workers; lock files are for it and for newer ones."""
_HEADER = "# Made by setup."
_INPUTS = re.compile(r"^# inputs: ([0-9a-f]{64})$", re.MULTILINE)
_INCLUDE = re.compile(r"^(?:-r|-c|--requirements?|--constraints?)[ =]*(?P<file>\S+)", re.MULTILINE)
_COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)


class LockError(Exception):
    """A lock file cannot be made; the message is one line for the user."""


@dataclass(frozen=True)
class Sources:
    """What a lock file is made from.

    Args:
        requirements: the user's requirements file, which lists the whole environment; None to use
            tpufleet's requirements.
        extras: requirements that are added to those of the file.
        project: the directory with tpufleet's requirements (.in) and lock files (.lock).
        jax_requirements: the name without suffix of tpufleet's requirements and lock file for the
            workers, such as ``worker-tpu``.
    """

    requirements: Path | None
    extras: tuple[str, ...]
    project: Path
    jax_requirements: str

    @property
    def file(self) -> Path:
        """The user's requirements file, or else tpufleet's."""
        return self.requirements or self.project / f"{self.jax_requirements}.in"

    @property
    def project_lock(self) -> Path:
        """tpufleet's lock file for the workers, made from ``jax_requirements``."""
        return self.project / f"{self.jax_requirements}.lock"

    @property
    def preferred(self) -> tuple[Path, ...]:
        """Lock files whose versions are preferred, because tpufleet's tests ran with them."""
        return self.project_lock, self.project / "dev.lock"

    @property
    def constraints(self) -> tuple[Path, ...]:
        """Lock files whose versions must be used: tpufleet's, unless ``requirements`` is set."""
        return () if self.requirements else (self.project_lock,)

    def digest(self) -> str:
        """Return a digest of the content of all requirements and constraints. Raises LockError."""
        texts = [*self.extras]
        for path in (self.file, *self.constraints):
            texts += _texts(path, set())
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()

    def option(self) -> str:
        """Return the options of setup.yml with these requirements, to show in messages."""
        options = [_extra_var("requirements", self.requirements)] if self.requirements else []
        if self.extras:
            options.append(f"-e {shlex.quote(json.dumps({'worker_extras': self.extras}))}")
        return " ".join(options)


def own_lock(
    requirements: str | None,
    extras: Sequence[str] | str,
    jax_requirements: str,
    folder: str,
    project: str,
) -> str:
    """Return the path of the lock file that setup makes for a user's packages.

    Returns an empty string if the user has no packages. Different extras have different files.
    Raises AnsibleFilterError.

    Args:
        requirements: the user's requirements file; the lock file is beside it. Empty for none.
        extras: additional requirements.
        jax_requirements: the name of tpufleet's requirements, which are used if the user has only
            extras.
        folder: the directory of the lock file if the user has only extras.
        project: the project's directory; ``requirements`` may be relative to it.
    """
    parsed_extras = parse_extras(extras)
    # The digest makes file names unique. Without it, a==1 and a>=1 would have the same name, as
    # characters such as = and > are replaced.
    digest = hashlib.sha256("\0".join(parsed_extras).encode()).hexdigest()[:8]
    if requirements:
        path = Path(user_path(requirements, project))
        if path.suffix == ".lock":
            raise AnsibleFilterError(
                f"requirements={requirements}: this is a lock file. Set jax_lock in place of "
                f"requirements: {setup_with_lock(path)}"
            )
        return str(path.with_name(f"{path.stem}{f'-{digest}' if parsed_extras else ''}.lock"))
    if not parsed_extras:
        return ""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join((jax_requirements, *parsed_extras)))
    return str(Path(folder).expanduser() / f"{name[:100]}-{digest}.lock")


def setup_with_lock(lock: Path) -> str:
    """Return the command that sets workers up with a lock file.

    It clears the inventory's requirements, which setup.yml refuses together with a lock file.
    """
    lock_option = _extra_var("jax_lock", lock)
    return f"ansible-playbook setup.yml {lock_option} -e requirements= -e worker_extras="


def _extra_var(name: str, path: Path) -> str:
    """Format ``-e NAME=PATH``: PATH is quoted for Ansible, and the whole value for the shell."""
    return f"-e {shlex.quote(f'{name}={shlex.quote(str(path))}')}"


def parse_extras(extras: Sequence[str] | str) -> tuple[str, ...]:
    """Return the requirements in a list or a comma-separated string, sorted."""
    requirements = extras.split(",") if isinstance(extras, str) else extras
    return tuple(sorted({str(requirement).strip() for requirement in requirements} - {""}))


def is_current(sources: Sources, lock: Path) -> bool:
    """Return whether a lock file was made from these sources.

    Returns False if the lock file does not exist. Raises LockError if setup did not create the lock
    file, or if a source cannot be read.
    """
    try:
        text = lock.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    if not text.startswith(_HEADER):
        raise LockError(
            f"{lock}: setup did not create this lock file, and does not replace it. Rename it, or "
            f"use it as it is: {setup_with_lock(lock)}"
        )
    match = _INPUTS.search(text)
    return bool(match) and match[1] == sources.digest()


def stale_lock(
    lock: str,
    requirements: str | None,
    extras: Sequence[str] | str,
    jax_requirements: str,
    project: str,
) -> str:
    """Return a warning if the user's requirements have changed since setup made the lock file.

    Returns an empty string if the requirements have not changed or are not on this controller, or
    if setup did not make the lock file. ``lock`` is the path of the lock file; for the other
    arguments see own_lock.
    """
    file = Path(user_path(requirements, project)) if requirements else None
    folder = Path(project).resolve() / "requirements"
    sources = Sources(file, parse_extras(extras), folder, jax_requirements)
    try:
        if not Path(lock).is_file() or is_current(sources, Path(lock)):
            return ""
    except LockError:
        return ""
    return (
        f"{sources.file}: changed since setup made {Path(lock).name}, or includes a file that "
        "has. This run gets the packages of that lock file. To get the new packages, first run: "
        f"ansible-playbook setup.yml {sources.option()}"
    )


def lock_text(sources: Sources, lock: Path, env: Mapping[str, str], upgrade: bool) -> str:
    """Return the text of a new lock file, with hashes.

    Args:
        sources: the requirements.
        lock: the path of the old lock file, whose versions are kept if they still fit. The file is
            not changed and may be missing.
        env: additional environment variables for uv.
        upgrade: whether to use the newest versions instead of the old ones.

    Raises:
        LockError: there are no versions that fit, or a package has no hash.
        OSError: a file cannot be read or written.
    """
    for extra in sources.extras:
        try:
            Requirement(extra)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0]
            raise LockError(
                f"worker_extras: {extra!r:.80} is not a requirement ({reason}). Use "
                "names of packages: ansible-playbook setup.yml -e worker_extras=wandb,datasets"
            ) from None
    digest = sources.digest()
    with tempfile.TemporaryDirectory() as scratch:
        new_lock = Path(scratch) / lock.name
        if not upgrade:  # uv keeps versions that its output file has, so write the old ones to it
            earlier_locks = [lock] if lock.is_file() else sources.preferred
            new_lock.write_text(
                "\n".join(path.read_text(encoding="utf-8") for path in earlier_locks)
            )
        _compile(sources, new_lock, env, upgrade)
        text = new_lock.read_text(encoding="utf-8")
    if unhashed := _without_hash(text):
        raise LockError(
            f"{sources.file}: directories and git repositories cannot be locked "
            f"({', '.join(unhashed)}). Push your own code with the run instead: "
            "ansible-playbook train.yml -e run=NAME -e code=DIRECTORY -e command=COMMAND"
        )
    option = sources.option().replace(str(sources.file), sources.file.name)
    update = f"To update it, run: ansible-playbook setup.yml {option} -e relock=true"
    return f"{_HEADER} {update}\n# inputs: {digest}\n{text}"


def _compile(sources: Sources, output: Path, env: Mapping[str, str], upgrade: bool) -> None:
    venv_uv = Path(sys.executable).with_name("uv")
    command = [str(venv_uv if venv_uv.exists() else "uv"), "pip", "compile", "--quiet"]
    command += ["--universal", "--python-version", PYTHON, "--only-binary", ":all:"]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
    command += ["--no-emit-find-links", "--output-file", str(output)]
    command += ["--upgrade"] if upgrade else []
    for path in sources.constraints:
        command += ["--constraints", str(path)]
    variables = index_environment(env)
    try:
        result = subprocess.run(
            [*command, str(sources.file), "-"],
            cwd=sources.file.parent,  # relative paths in the requirements file start here
            env=variables,
            input="\n".join(sources.extras),
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise LockError("uv is not installed on the controller. Install it: make env") from None
    if result.returncode:
        reason = failed_steps(without_secrets(result.stderr, variables))
        raise LockError(
            f"{sources.file}: cannot be locked ({reason}). Fix it, or build missing wheels for "
            "jax_own_wheels (docs/setup.md), then run: ansible-playbook setup.yml "
            f"{sources.option()}"
        )


def _without_hash(lock: str) -> list[str]:
    """Return the lines of a lock file that have no hash: directories and git repositories."""
    lines = re.sub(r"\\\n\s*", " ", lock).splitlines()
    return [line for line in lines if line.strip(" #") and "--hash=" not in line]


def _texts(path: Path, visited: set[Path]) -> Iterator[str]:
    """Yield the text of a requirements file and of the files that it includes, without comments."""
    visited.add(path.resolve())
    try:
        text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(
            f"{path}: cannot be read ({getattr(error, 'strerror', error)}). Name a file of "
            "requirements: ansible-playbook setup.yml -e requirements=FILE"
        ) from None
    yield "\n".join(line.strip() for line in text.splitlines() if line.strip())
    for include in _INCLUDE.finditer(text):
        nested = path.parent / include["file"]
        if "://" not in include["file"] and nested.resolve() not in visited:
            yield from _texts(nested, visited)
