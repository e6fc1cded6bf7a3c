"""Checks of the controller: versions, programs, the ssh key."""

from __future__ import annotations

import importlib.metadata
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ...module_utils.worker.doctor_finding import Finding, ok, problem
from ...module_utils.worker.process import VAULT, unmaskable_secrets, unmasked_secrets
from ..runs.secret_sources import EDIT, encrypt, exposure, outside_secrets, readable_secrets

OLDEST_PYTHON = (3, 12)
OLDEST_CORE = (2, 19)
MAKE_ENV = "make env, then .venv/bin/ansible-playbook"
#: Programs and their Debian packages; gcloud is only needed for IAP.
PROGRAMS = {"ssh": "openssh-client", "rsync": "rsync"}
GCLOUD_PAGE = "https://cloud.google.com/sdk/docs/install"


def installed_version(package: str) -> str:
    """Return the version of a Python package; empty if the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def version_findings() -> Iterator[Finding]:
    """Check the versions of Python and of the packages that the collection needs."""
    python_version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        yield problem("python", f"{python_version} ({sys.executable}) is older than 3.12", MAKE_ENV)
    else:
        yield ok("python", f"{python_version} ({sys.executable})")
    core = installed_version("ansible-core")
    core_version = tuple(int(part) for part in core.split(".")[:2] if part.isdecimal())
    if core_version < OLDEST_CORE:
        message = f"{core} is older than 2.19" if core else "not installed"
        yield problem("ansible-core", message, MAKE_ENV)
    else:
        yield ok("ansible-core", core)
    not_installed = f"is not installed for {sys.executable}"
    for package in ("google-auth", "requests"):
        yield _presence_finding(package, installed_version(package), not_installed, MAKE_ENV)


def program_findings(address: str) -> Iterator[Finding]:
    """Check that the programs that the playbooks call are installed.

    ``address`` is the inventory option ``address``: with ``iap``, ssh also needs gcloud.
    """
    for program, package in PROGRAMS.items():
        install = f"sudo apt-get install {package}"
        yield _presence_finding(program, shutil.which(program), "is not on the PATH", install)
    if address == "iap":
        not_on_path = "is not on the PATH, and address: iap needs it"
        yield _presence_finding("gcloud", shutil.which("gcloud"), not_on_path, GCLOUD_PAGE)


def _presence_finding(check: str, value: str | None, message: str, fix: str) -> Finding:
    return ok(check, value) if value else problem(check, message, fix)


def key_finding(private_key_file: str) -> Finding:
    """Check that the ssh key exists with its public key, and that only its owner can read it."""
    check = "ssh key"
    if not private_key_file:
        return ok(check, "ssh's default (ssh_private_key_file is empty)")
    path = Path(private_key_file).expanduser()
    create = "ansible-playbook playbooks/create.yml, which creates it"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        path.open("rb").close()
    except FileNotFoundError:
        return problem(check, f"{path} does not exist", create)
    except OSError as error:
        return problem(check, f"{path} can't be read: {error.strerror}", f"ls -l {path}")
    if mode & 0o077:
        message = f"{path} has the mode {mode:04o}, so ssh refuses it"
        return problem(check, message, f"chmod 600 {path}")
    if not path.with_name(f"{path.name}.pub").is_file():
        fix = f"ssh-keygen -y -f {path} > {path}.pub"
        return problem(check, f"{path}.pub is missing", fix)
    return ok(check, str(path))


def secret_findings(
    secrets: Mapping[str, object],
    worker_environment: Mapping[str, object],
    sources: Iterable[str] = (),
    variables: Iterable[str] = (),
) -> Iterator[Finding]:
    """Find secrets that would not be masked in logs, or that other users can read.

    ``secrets`` and ``worker_environment`` are the inventory's variables of these names; only the
    values of ``secrets`` are masked. ``sources`` are the inventories in use, ``variables`` the
    names of all their variables. Yields no finding if a launch would accept the secrets without a
    warning.
    """
    if blocker := unmaskable_secrets(secrets):
        yield problem("secrets", blocker, "$EDITOR inventory/*/group_vars/all")
    for file, mode in readable_secrets(sources):
        yield problem("secrets", f"{file} {exposure(mode)}", encrypt(file))
    if misplaced := outside_secrets(variables, secrets):
        yield problem("secrets", misplaced, EDIT)
    if blocker := unmasked_secrets(worker_environment):
        yield problem("worker_environment", blocker, VAULT)
