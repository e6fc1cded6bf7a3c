"""Inventory variables for doctor.yml if the inventory plugin could not list the TPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...module_utils.cloud.session import API_SETTINGS

ERROR = "tpu_inventory_error"
"""The variable with the reason why the inventory could not be read."""


def known_variables(
    error: str, text: Mapping[str, str], other: Mapping[str, Any], hints: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the variables of the group ``all`` for an inventory that could not be read.

    Args:
        error: the reason, on one line.
        text: the inventory options that may be templates and could be evaluated, by name.
        other: the inventory options that are never templates, by name.
        hints: the variables in the inventory option ``vars``.
    """
    ssh = {"user": "ssh_user", "private_key_file": "ssh_private_key_file"}
    ssh["known_hosts_file"] = "known_hosts_file"
    # Set all API settings or none: a missing endpoint would default to Google's.
    known = {key: text[key] for key in API_SETTINGS} if set(API_SETTINGS) <= set(text) else {}
    return {
        **hints,
        "tpu_api": known | {"zones": other.get("zones", ["-"])},
        "tpu_ssh": {key: text[option] for key, option in ssh.items() if option in text}
        | {"address": other.get("address", "external"), "os_login": bool(other.get("os_login"))},
        "tpu_partial": False,
        "tpu_unreachable": [],
        ERROR: error,
    }
