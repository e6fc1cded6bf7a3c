"""Trust of text that cannot be a template, for variables that the inventory plugin builds."""

from __future__ import annotations

import re
from typing import Any

from ansible.template import trust_as_template

#: No character that a template needs: ``{`` begins an expression, and ``#`` begins the header
#: ``#jinja2:``, which redefines what an expression begins with.
_INERT = re.compile(r"[\w .,:;/@%+=~*?!'\"\\\[\]()-]*")


def trust_inert(value: Any) -> Any:
    """Mark text of harmless characters as trusted, in a value of any depth.

    ansible-inventory writes trusted text as it is, and untrusted text as
    ``{"__ansible_unsafe": …}``, which testinfra and other readers of its output do not know. Call
    this only for variables that the plugin builds from validated fields and its own options, never
    for free text such as labels.
    """
    if isinstance(value, str):
        return trust_as_template(value) if _INERT.fullmatch(value) else value
    if isinstance(value, dict):
        return {key: trust_inert(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [trust_inert(item) for item in value]
    return value
