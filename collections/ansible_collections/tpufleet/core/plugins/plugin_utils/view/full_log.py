"""The full log of one playbook's run: what the terminal leaves out stands there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KEPT = 100
"""Logs that stay; older ones of the same directory go."""

_LEFT_OUT = ("invocation", "ansible_facts")


class FullLog:
    """One file, 0600: results may name what only its owner may know."""

    def __init__(self, directory: Path, playbook: str) -> None:
        """Make ``<directory>/<time>-<playbook>.log``. Raises OSError where that can't be done."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _prune(directory)
        stamp = time.strftime("%Y%m%dT%H%M%S")
        self.path = directory / f"{stamp}-{playbook}-{os.getpid()}.log"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace")

    def line(self, text: str) -> None:
        """Write a line behind the time."""
        self._file.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def result(self, host: str, outcome: str, result: Mapping[str, Any]) -> None:
        """Write what one host answered; a censored result is all that core leaves of it."""
        self.line(f"{outcome} {host} {result_text(result)}")

    def flush(self) -> None:
        """Bring what is written to the file: a killed playbook's log is read most of all."""
        self._file.flush()

    def close(self) -> None:
        """Write the rest."""
        self._file.close()


def result_text(result: Mapping[str, Any]) -> str:
    """Say a result in one line of JSON, without what core adds for itself."""
    kept = {
        key: value
        for key, value in result.items()
        if key not in _LEFT_OUT and not key.startswith("_ansible")
    }
    return json.dumps(kept, default=str, ensure_ascii=False)


def _prune(directory: Path) -> None:
    logs = sorted(directory.glob("*.log"))
    for old in logs[: max(0, len(logs) - KEPT + 1)]:
        old.unlink(missing_ok=True)
