"""Values of Ansible, which may be tagged, as plain JSON values."""

from __future__ import annotations


def plain(value):
    """Turn Ansible's tagged values into JSON's own."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
