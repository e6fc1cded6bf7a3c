"""The option ``-e checkpoints=`` of fetch.yml: which checkpoints to download."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError


def checkpoint_choice(asked: Any) -> str:
    """Parse which checkpoints to fetch: ``none`` (or false), ``newest`` or ``all`` (or true).

    A path or URI means ``none``, because the inventory's variable ``checkpoints``, which says where
    launches save checkpoints, has the same name. Raises AnsibleFilterError.
    """
    word = str(asked).strip().lower()
    if "/" in word:
        return "none"
    known = {"true": "all", "yes": "all", "1": "all", "false": "none", "no": "none", "0": "none"}
    found = known.get(word, word)
    if found not in ("none", "newest", "all"):
        raise AnsibleFilterError(
            f"checkpoints: expected newest or all ({word}). Fix: -e checkpoints=newest"
        )
    return found
