"""Whether the playbook is the doctor's, which has to run where the inventory can't be read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import context

ERROR = "doctor_inventory_error"
"""The variable that tells the doctor why the inventory could not be read."""
_NAMES = ("doctor.yml", "tpufleet.core.doctor")


def doctor_asked() -> bool:
    """Tell whether ansible-playbook was called with the doctor's playbook and no other."""
    books = context.CLIARGS.get("args") or ()
    return len(books) == 1 and (Path(str(books[0])).name in _NAMES)


def last_words(
    error: str, text: Mapping[str, str], other: Mapping[str, Any], hints: Mapping[str, Any]
) -> dict[str, Any]:
    """Give the group all's variables of an inventory that could not be read: what it knows.

    ``text`` are the options that were evaluated, ``other`` those that need no evaluation,
    ``hints`` the inventory's own variables.
    """
    api = ("project", "endpoint", "compute_endpoint", "storage_endpoint", "credentials_file")
    ssh = {"user": "ssh_user", "private_key_file": "ssh_private_key_file"}
    ssh["known_hosts_file"] = "known_hosts_file"
    # An endpoint that could not be found out must not be taken for Google's.
    known = {key: text[key] for key in api} if set(api) <= set(text) else {}
    return {
        **hints,
        "tpu_api": known | {"zones": other.get("zones", ["-"])},
        "tpu_ssh": {key: text[option] for key, option in ssh.items() if option in text}
        | {"address": other.get("address", "external"), "os_login": bool(other.get("os_login"))},
        "tpu_partial": False,
        "tpu_unreachable": [],
        ERROR: error,
    }
