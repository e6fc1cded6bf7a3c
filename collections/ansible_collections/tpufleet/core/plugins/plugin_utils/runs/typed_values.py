"""Find values of ``-e`` that Ansible cut at their first space, without a warning."""

from __future__ import annotations

from collections.abc import Mapping

from ansible import context
from ansible.errors import AnsibleError
from ansible.parsing.splitter import parse_kv


def cut_short(examples: Mapping[str, str], playbook: str) -> str:
    """Return an error with the right command if a value was cut; empty if none was.

    Args:
        examples: a whole value for each variable that may have spaces.
        playbook: the playbook of the command in the error.
    """
    for given in context.CLIARGS.get("extra_vars") or ():
        name = str(given).partition("=")[0]
        if name in examples and _is_cut(str(given), name):
            return (
                f"-e {name}=… is cut at its first space. Quote the value twice: "
                f"ansible-playbook {playbook} -e {name}='\"{examples[name]}\"'"
            )
    return ""


def _is_cut(given: str, name: str) -> bool:
    try:
        return set(parse_kv(given)) != {name}
    except AnsibleError:
        return False  # Ansible reports it
