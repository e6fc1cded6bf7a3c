"""Conversion of Ansible's tagged values to plain JSON values."""

from __future__ import annotations


def plain(value):
    """Return a value as plain JSON types, without the tags that Ansible adds to values."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
