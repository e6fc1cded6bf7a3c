"""The code as one playbook run sees it: staged once, whichever tasks and forks ask for it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ansible import constants

from ...module_utils.worker.release import release_id
from .code_tree import stage


def staged(code: str, chosen: Sequence[str]) -> tuple[Path, str]:
    """Give the staged tree of a code directory and its release's name.

    The first fork makes it, under a lock, so what a playbook sends is one state of the code,
    whatever happens in the directory meanwhile. A relative path begins where the command was
    typed. Raises ReleaseError, OSError.
    """
    place = os.path.abspath(code)  # noqa: PTH100 - takes ".." out as well
    key = hashlib.sha256(json.dumps([place, *chosen]).encode()).hexdigest()[:16]
    base = Path(constants.DEFAULT_LOCAL_TMP) / f"staged-{key}"
    base.mkdir(parents=True, exist_ok=True)
    with (base / "lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        name = base / "name"
        if not name.exists():
            attempt = Path(tempfile.mkdtemp(dir=base))
            entries = stage(Path(place), chosen, attempt / "tree")
            attempt.replace(base / "staged")
            name.write_text(release_id(entries), encoding="ascii")
        return base / "staged" / "tree", name.read_text(encoding="ascii")
