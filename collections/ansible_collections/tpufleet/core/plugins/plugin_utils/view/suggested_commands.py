"""Inventory options of this ansible-playbook call, for the Ansible commands that it suggests.

A module or role does not know the inventory options. Without them, a suggested command such as
``ansible-playbook setup.yml`` would act on the default inventory, which may be another fleet.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.parsing.splitter import parse_kv

_COMMAND = re.compile(
    r"\bansible(?:-playbook (?=(?:playbooks/)?[a-z_]+\.yml\b)|-inventory (?=--)"
    r"| (?=[\w.-]+ -[abm] ))"
)


def fleet_options(arguments: Mapping[str, Any], default_inventory: Sequence[str]) -> str:
    """Return the shell-quoted options that select the fleet of this ansible-playbook call.

    These are the inventories, the passwords of their vaults, files of variables (``-e @FILE``) and
    ``fleet_state``. ``arguments`` are Ansible's ``context.CLIARGS``. ``default_inventory`` lists
    the inventories that Ansible uses without ``-i``; for these no option is needed.
    """
    options: list[str] = []
    inventories = [str(source) for source in arguments.get("inventory") or ()]
    if inventories != [str(source) for source in default_inventory]:
        for source in inventories:
            options += ["-i", _relative_path(source)]
    for vault_id in arguments.get("vault_ids") or ():
        options += ["--vault-id", str(vault_id)]
    for file in arguments.get("vault_password_files") or ():
        options += ["--vault-password-file", _relative_path(str(file))]
    for extra_vars in map(str, arguments.get("extra_vars") or ()):
        if extra_vars.startswith("@"):
            options += ["-e", extra_vars]
        elif extra_vars.startswith(("{", "[")):
            continue
        elif fleet_state := parse_kv(extra_vars).get("fleet_state"):
            options += ["-e", f"fleet_state={shlex.quote(str(fleet_state))}"]
    return shlex.join(options)


def with_fleet_options(text: str, options: str) -> str:
    """Return ``text`` with ``options`` added to each Ansible command in it."""
    if not options:
        return text
    return _COMMAND.sub(lambda match: f"{match[0]}{options} ", text)


def _relative_path(source: str) -> str:
    path, directory = Path(source), Path.cwd()
    return str(path.relative_to(directory)) if path.is_relative_to(directory) else source
