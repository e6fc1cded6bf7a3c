"""Checks that the inventory's secrets are in a private file and in the mapping ``secrets``."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

import yaml
from ansible.parsing.vault import is_encrypted

from ...module_utils.worker.process import looks_secret
from ...module_utils.worker.run import RunError

FILE = "group_vars/all/secrets.yml"
"""The file of secrets that the documentation names, relative to the inventory's directory."""
EDIT = f"ansible-vault edit INVENTORY/{FILE}"
"""The command that edits the encrypted file; INVENTORY is the directory of the inventory."""
OTHERS_READ = stat.S_IRGRP | stat.S_IROTH
_NOT_PLAIN_MARKERS = (b"!vault", b"{{")
"""Strings that show that a file's values are encrypted one by one or come from templates."""


def readable_secrets(sources: Iterable[str]) -> list[tuple[Path, int]]:
    """Return the files of secrets in plain text that other users can read, each with its mode.

    ``sources`` are the inventories in use, as in ``ansible_inventory_sources``. A file with an
    encrypted value or a template does not count, whatever else it contains.
    """
    modes: dict[Path, int] = {}
    for source in sources:
        path = Path(source)
        try:
            if "," in source and not path.exists():  # the source is a list of hosts, not a path
                continue
            file = (path if path.is_dir() else path.parent) / FILE
            mode = file.stat().st_mode
            is_exposed = stat.S_ISREG(mode) and mode & OTHERS_READ
            if is_exposed and _has_plain_value(file.read_bytes()):
                modes[file] = stat.S_IMODE(mode)
        except OSError:  # the file is missing, or this user's Ansible can't read it either
            continue
    return list(modes.items())


def _has_plain_value(content: bytes) -> bool:
    """Return whether a file of variables has values in plain text.

    A file with any encrypted value or template counts as having none.
    """
    if is_encrypted(content) or any(marker in content for marker in _NOT_PLAIN_MARKERS):
        return False
    try:
        variables = yaml.safe_load(content)
    except yaml.YAMLError:
        return True
    return any(variables.values()) if isinstance(variables, dict) else bool(variables)


def exposure(mode: int) -> str:
    """Return the error for a plain-text file of secrets whose mode lets other users read it."""
    return f"contains secrets in plain text, and other users can read it (mode {mode:04o})"


def encrypt(file: Path) -> str:
    """Return the command that encrypts a file of secrets."""
    return f"ansible-vault encrypt {shlex.quote(str(file))}"


def check_secret_files(sources: Iterable[str]) -> None:
    """Raise RunError if other users can read secrets of the inventory."""
    for file, mode in readable_secrets(sources):
        raise RunError(
            f"{file}: {exposure(mode)}. Encrypt it: {encrypt(file)} "
            f"(or, to keep it in plain text: chmod 600 {shlex.quote(str(file))})"
        )


def outside_secrets(variables: Iterable[str], secrets: Collection[str]) -> str:
    """Return an error that names variables that were probably meant for ``secrets``; empty if none.

    ``variables`` are the names of all inventory variables. Only names in upper case count, such as
    HF_TOKEN, because environment variables usually have such names.
    """
    outside = {name for name in variables if name.isupper() and looks_secret(name)} - {*secrets}
    names = ", ".join(sorted(outside))
    return f"{names}: set outside the mapping secrets, so not passed to trainers" if outside else ""
