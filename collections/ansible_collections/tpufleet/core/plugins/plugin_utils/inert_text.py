"""Text from an API that cannot be a template, told apart from text that could be one."""

from __future__ import annotations

from typing import Any

from ansible.template import trust_as_template


def plain(value: Any) -> Any:
    """Mark text without a brace as trusted, in a value of any depth; leave all else untrusted.

    Without ``{`` there is no template to run, so trust gives nothing away; and ansible-inventory
    then writes the text as it is, not as ``{"__ansible_unsafe": …}``, which testinfra and other
    readers of its output do not know.
    """
    if isinstance(value, str):
        return value if "{" in value else trust_as_template(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
