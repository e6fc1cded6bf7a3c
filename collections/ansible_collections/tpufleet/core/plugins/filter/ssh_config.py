"""The workers as ssh_config(5), so that ssh, scp and editors reach them by name as Ansible does."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError


def ssh_config(variables: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> str:
    """Write a file for ``Include``: a block a worker.

    Args:
        variables: hostvars.
        hosts: which of them, in this order.

    Raises:
        AnsibleFilterError: a worker's connection has arguments that no ssh_config can say.
    """
    return "".join(block(host, variables[host]) for host in hosts)


def block(host: str, variables: Mapping[str, Any]) -> str:
    """Write one worker's block, from the variables by which Ansible reaches it."""
    lines = [("HostName", variables.get("ansible_host", host))]
    for keyword, name in (
        ("Port", "ansible_port"),
        ("User", "ansible_user"),
        ("IdentityFile", "ansible_ssh_private_key_file"),
    ):
        if variables.get(name):
            lines.append((keyword, quoted(str(variables[name]))))
    if variables.get("ansible_ssh_private_key_file"):
        lines.append(("IdentitiesOnly", "yes"))
    lines += options(host, str(variables.get("ansible_ssh_common_args", "")))
    return f"Host {host}\n" + "".join(f"    {keyword} {value}\n" for keyword, value in lines)


def options(host: str, arguments: str) -> list[tuple[str, str]]:
    """Turn ``-o Keyword=value`` words into pairs. Raises AnsibleFilterError."""
    words, found = iter(shlex.split(arguments)), []
    for word in words:
        text = next(words, "") if word == "-o" else word.removeprefix("-o")
        keyword, equals, value = text.partition("=")
        if not word.startswith("-o") or not equals or "\n" in text:
            raise AnsibleFilterError(
                f"{host}: ansible_ssh_common_args has {word!r}, which no ssh_config can say: "
                "use -o Keyword=value"
            )
        found.append((keyword, value))
    return found


def quoted(value: str) -> str:
    """Quote a value with spaces, and keep ssh from reading its percent signs."""
    value = value.replace("%", "%%")
    return f'"{value}"' if " " in value else value


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"ssh_config": ssh_config}
