"""ssh_config(5) for workers, so that ssh, scp and editors connect to them as Ansible does."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError


def ssh_config(variables: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> str:
    """Return the content of a file for ssh's ``Include``, with a ``Host`` block for each host.

    ``variables`` maps each host to its inventory variables. Raises AnsibleFilterError if
    ``ansible_ssh_common_args`` has other arguments than ``-o Keyword=value``.
    """
    return "".join(_block(host, variables[host]) for host in hosts)


def _block(host: str, variables: Mapping[str, Any]) -> str:
    lines = [("HostName", variables.get("ansible_host", host))]
    for keyword, name in (
        ("Port", "ansible_port"),
        ("User", "ansible_user"),
        ("IdentityFile", "ansible_ssh_private_key_file"),
    ):
        if variables.get(name):
            lines.append((keyword, _quoted(str(variables[name]))))
    if variables.get("ansible_ssh_private_key_file"):
        lines.append(("IdentitiesOnly", "yes"))
    lines += _options(host, str(variables.get("ansible_ssh_common_args", "")))
    return f"Host {host}\n" + "".join(f"    {keyword} {value}\n" for keyword, value in lines)


def _options(host: str, arguments: str) -> list[tuple[str, str]]:
    items, options = iter(shlex.split(arguments)), []
    for item in items:
        option = next(items, "") if item == "-o" else item.removeprefix("-o")
        keyword, equals, value = option.partition("=")
        if not item.startswith("-o") or not equals or "\n" in option:
            raise AnsibleFilterError(
                f"{host}: ansible_ssh_common_args: not an ssh_config option ({item!r}). "
                "Use -o Keyword=value"
            )
        options.append((keyword, value))
    return options


def _quoted(value: str) -> str:
    # Double the percent signs: ssh expands a single one (ssh_config(5), "TOKENS").
    value = value.replace("%", "%%")
    return f'"{value}"' if " " in value else value
