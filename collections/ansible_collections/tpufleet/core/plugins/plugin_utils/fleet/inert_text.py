"""Marks variables of the inventory plugin as trusted if they can't be templates."""

from __future__ import annotations

import re
from typing import Any

from ansible.template import trust_as_template

#: Text without the characters that a template needs: ``{`` begins an expression, and ``#`` begins
#: the header ``#jinja2:``, which can redefine how an expression begins.
_INERT = re.compile(r"[\w .,:;/@%+=~*?!'\"\\\[\]()-]*")


def trust_inert(value: Any) -> Any:
    """Return the value with all strings that can't be templates marked as trusted, at any depth.

    ansible-inventory writes a trusted string unchanged, and an untrusted one as
    ``{"__ansible_unsafe": …}``, which testinfra and other programs can't read. Call this only for
    variables that the inventory plugin builds from validated fields and its own options, never for
    free text such as labels.
    """
    if isinstance(value, str):
        return trust_as_template(value) if _INERT.fullmatch(value) else value
    if isinstance(value, dict):
        return {key: trust_inert(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [trust_inert(item) for item in value]
    return value
