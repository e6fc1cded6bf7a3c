"""Checks of where the inventory keeps secrets: in a private file, and in the variable secrets."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ...module_utils.worker.process import looks_secret
from ...module_utils.worker.run import RunError

FILE = "group_vars/all/secrets.yml"
"""The file of secrets that the documentation names, relative to the inventory's directory."""
EDIT = f"ansible-vault edit INVENTORY/{FILE}"
"""The command that edits the encrypted file; INVENTORY is the directory of the inventory."""
OTHERS_READ = stat.S_IRGRP | stat.S_IROTH
_ENCRYPTED = b"$ANSIBLE_VAULT;"
_ELSEWHERE = (b"!vault", b"{{")
"""Signs that the values in a file are encrypted one by one, or looked up by a template."""


def readable_secrets(sources: Iterable[str]) -> Iterator[tuple[Path, int]]:
    """Yield files of secrets in plain text that other users can read, each with its mode.

    ``sources`` are the inventories in use, as in ``ansible_inventory_sources``. A file with an
    encrypted value or a template does not count, whatever else it contains. Raises OSError.
    """
    for source in sources:
        if "," in source:  # a list of hosts, not a path
            continue
        path = Path(source)
        file = (path if path.is_dir() else path.parent) / FILE
        if not file.is_file():
            continue
        mode, content = stat.S_IMODE(file.stat().st_mode), file.read_bytes()
        is_protected = content.startswith(_ENCRYPTED) or any(map(content.__contains__, _ELSEWHERE))
        if mode & OTHERS_READ and not is_protected:
            yield file, mode


def exposure(mode: int) -> str:
    """Return what is wrong with a file of secrets in plain text that has this mode."""
    return f"contains secrets in plain text, and other users can read it (mode {mode:04o})"


def encrypt(file: Path) -> str:
    """Return the command that encrypts a file of secrets."""
    return f"ansible-vault encrypt {shlex.quote(str(file))}"


def check_secret_files(sources: Iterable[str]) -> None:
    """Raise RunError if other users can read secrets of the inventory. Raises OSError."""
    for file, mode in readable_secrets(sources):
        raise RunError(
            f"{file}: {exposure(mode)}. Encrypt it: {encrypt(file)} "
            f"(or, to keep it in plain text: chmod 600 {shlex.quote(str(file))})"
        )


def outside_secrets(variables: Iterable[str], secrets: Collection[str]) -> str:
    """Return an error that names variables that were probably meant for ``secrets``; empty if none.

    ``variables`` are the names of all inventory variables. Only names in upper case count, such as
    HF_TOKEN, because those of environment variables usually are.
    """
    found = {name for name in variables if name.isupper() and looks_secret(name)} - {*secrets}
    names = ", ".join(sorted(found))
    return f"{names}: set outside the mapping secrets, so not passed to trainers" if found else ""
