"""Conversion of Ansible's tagged values to plain JSON values."""

from __future__ import annotations


def plain(value):
    """Replace Ansible's tagged types in a value, at any depth, by dict, list, str and so on."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    for type_ in (bool, int, float, str):
        if isinstance(value, type_):
            return type_(value)
    return value
