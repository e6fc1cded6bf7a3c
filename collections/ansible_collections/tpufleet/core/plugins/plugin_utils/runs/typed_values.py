"""Parser of values that users type with ``-e`` or write into the inventory."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible import context
from ansible.errors import AnsibleError, AnsibleFilterError
from ansible.parsing.splitter import parse_kv

_WITH_PAIRS = ("set", "env", "command")
"""Variables whose values may contain NAME=VALUE, which Ansible takes for another variable."""


def truncated_value_error(examples: Mapping[str, str], playbook: str) -> str:
    """Return an error if Ansible cut a ``-e`` value at its first space; empty if it did not.

    Args:
        examples: an example value for each variable whose value may contain spaces.
        playbook: the playbook that the error tells the user to run.
    """
    for argument in context.CLIARGS.get("extra_vars") or ():
        name = str(argument).partition("=")[0]
        if name in examples and _is_truncated(str(argument), name):
            return (
                f"-e {name}=… is cut at its first space. Quote the value twice: "
                f"ansible-playbook {playbook} -e {name}='\"{examples[name]}\"'"
            )
    return ""


def _is_truncated(argument: str, name: str) -> bool:
    try:
        others = set(parse_kv(argument)) - {name}
        return bool(others) if name in _WITH_PAIRS else "_raw_params" in others
    except AnsibleError:
        return False  # Ansible itself reports unbalanced quotes in -e


def parse_env(environment: Any, name: str = "env") -> dict[str, str]:
    """Parse environment variables: a mapping, JSON, or one line NAME=value OTHER=value.

    ``name`` is the Ansible variable that has this value. Raises AnsibleFilterError, which
    contains no value, since values may be secret.
    """
    if isinstance(environment, str):
        text = environment.strip()
        try:
            environment = json.loads(text) if text.startswith("{") else _pairs(shlex.split(text))
        except ValueError as error:
            raise _bad_env(name, f"cannot be read ({error})") from None
    if not isinstance(environment, Mapping):
        raise _bad_env(name, f"is a {type(environment).__name__}")
    nested = [str(key) for key, value in environment.items() if isinstance(value, Mapping | list)]
    if nested:
        raise _bad_env(name, f"values must not be lists or mappings ({', '.join(nested)})")
    return {str(key): "" if value is None else str(value) for key, value in environment.items()}


def _pairs(assignments: Sequence[str]) -> dict[str, str]:
    if any("=" not in assignment for assignment in assignments):
        raise ValueError("a word without '='")
    return dict(assignment.split("=", 1) for assignment in assignments)


def _bad_env(name: str, problem: str) -> AnsibleFilterError:
    fix = f"Set {name} in the inventory to a mapping of names to values"
    if name == "env":
        fix = (
            "Use a mapping of names to values, or one line: "
            "ansible-playbook train.yml -e env='\"NAME=value OTHER=value\"'"
        )
    return AnsibleFilterError(f"{name}: {problem}. {fix}")


def checkpoint_choice(value: Any) -> str:
    """Check ``-e checkpoints=`` of fetch.yml: ``none``, ``newest`` or ``all``.

    A path or URI also means ``none``: without ``-e checkpoints=``, ``value`` is the inventory's
    variable of the same name, which says where launches save checkpoints. Raises
    AnsibleFilterError.
    """
    choice = "none" if "/" in str(value) else value
    if choice not in ("none", "newest", "all"):
        raise AnsibleFilterError(
            f"checkpoints: expected none, newest or all ({value}). Example: -e checkpoints=newest"
        )
    return choice
