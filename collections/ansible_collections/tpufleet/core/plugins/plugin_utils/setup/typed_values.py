"""Values of ``-e`` that Ansible cuts at their first space, of which it says nothing."""

from __future__ import annotations

from pathlib import Path

from ansible import context
from ansible.errors import AnsibleError
from ansible.parsing.splitter import parse_kv

_EXAMPLES = {
    "set": "steps=2000 seed=2",
    "command": "PROGRAM ARGUMENT",
    "env": "A=1 B=2",
    "at": "2026-12-31 18:00",
}
_OF = {"train": ("set", "command", "env"), "schedule": ("at",)}
"""By playbook, what is a text of several words there; elsewhere it is what it is to Ansible."""


def cut_short() -> str:
    """Say which value was typed without quotes of its own, and how it is typed; else nothing."""
    books = [str(book) for book in context.CLIARGS.get("args") or ()]
    verbs = [Path(book).name.removesuffix(".yml").rpartition(".")[2] for book in books]
    texts = {name for verb in verbs for name in _OF.get(verb, ())}
    for said in context.CLIARGS.get("extra_vars") or ():
        name = str(said).partition("=")[0]
        if name in texts and _is_cut(str(said), name):
            verb = next(verb for verb in verbs if name in _OF.get(verb, ()))
            book = f"{'' if verb == 'train' else 'playbooks/'}{verb}.yml"
            return (
                f"-e {name}=… is cut at its first space: give the value quotes of its own: "
                f"ansible-playbook {book} -e {name}='\"{_EXAMPLES[name]}\"'"
            )
    return ""


def _is_cut(said: str, name: str) -> bool:
    try:
        return set(parse_kv(said)) != {name}
    except AnsibleError:
        return False  # Ansible says what is wrong with it
