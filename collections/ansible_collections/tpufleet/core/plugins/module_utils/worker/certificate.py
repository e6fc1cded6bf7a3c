"""A worker's certificate: that setup came to its end there, with which content, and what it saw.

It is taken away before setup changes anything, and written when all is done: a worker without one
is not ready. Standard library only; it is read where runs are launched as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

NAME = "ready.json"


def read_certificate(root: Path = Path("/opt/tpufleet")) -> dict | None:
    """Give the certificate of this worker, or None if it has none that can be read.

    Its keys: ``content`` (what setup would do, as a hash), ``environment`` (the Python
    environment's name), ``versions``, ``chips`` (device files seen), ``files`` (what setup wrote,
    by path, as hashes).
    """
    try:
        told = json.loads((root / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) and told.get("content") else None


def lacks(certificate: Mapping, now: Mapping) -> list[str]:
    """Compare a certificate with what is: say what is no longer so, a phrase each."""
    found = []
    if certificate.get("content") != now["content"]:
        found.append("setup would do something else now")
    for path in sorted(set(certificate.get("files", {})) | set(now["files"])):
        if certificate.get("files", {}).get(path) != now["files"].get(path):
            found.append(f"{path} is not as setup left it")
    for key, phrase in (("environment", "the Python environment"), ("chips", "the chips")):
        if certificate.get(key) != now[key]:
            found.append(f"{phrase}: {now[key] or 'none'} where {certificate.get(key)} was")
    return found + list(now["missing"])


def digests(patterns: Iterable[str], base: Path = Path("/")) -> dict[str, str]:
    """Give the SHA-256 of the files that the patterns name, by path; of a link, where it leads."""
    found = {}
    for pattern in patterns:
        for path in base.glob(pattern.lstrip("/")):
            if path.is_symlink():
                data = str(path.readlink()).encode()
            elif path.is_file():
                data = path.read_bytes()
            else:
                continue
            found[f"/{path.relative_to(base)}"] = hashlib.sha256(data).hexdigest()
    return found
