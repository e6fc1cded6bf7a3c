"""The full log of a playbook run, including what the terminal omits."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Maximum number of logs in a directory; the oldest ones are deleted.
MAX_LOGS = 100
_NAME = re.compile(r"\d{8}T\d{6}-.+-(?P<pid>\d+)\.log", re.ASCII)

_OMITTED = ("invocation", "ansible_facts")


class FullLog:
    """The log file of one playbook run, with mode 0600 because results may contain secrets."""

    def __init__(self, directory: Path, playbook: str) -> None:
        """Create ``<directory>/<time>-<playbook>-<pid>.log``. Raises OSError."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _prune(directory)
        stamp = time.strftime("%Y%m%dT%H%M%S")
        self.path = directory / f"{stamp}-{playbook}-{os.getpid()}.log"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # Line-buffered, so that nothing is lost if the playbook is killed.
        self._file = os.fdopen(descriptor, "w", 1, encoding="utf-8", errors="backslashreplace")

    def line(self, text: str) -> None:
        """Write a line with the current time."""
        with suppress(OSError):  # a full disk must not stop the output on the terminal
            self._file.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def result(self, host: str, outcome: str, result: Mapping[str, Any]) -> None:
        """Write a line with a task's ``outcome`` on a host, such as ``changed``, and its result.

        Ansible has already censored the results of ``no_log`` tasks.
        """
        fields = {
            key: value
            for key, value in result.items()
            if key not in _OMITTED and not key.startswith("_ansible")
        }
        self.line(f"{outcome} {host} {json.dumps(fields, default=str, ensure_ascii=False)}")

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._file.close()


def _prune(directory: Path) -> None:
    """Delete the oldest logs until fewer than MAX_LOGS remain; keep those of running playbooks."""
    matches = filter(None, (_NAME.fullmatch(path.name) for path in directory.glob("*.log")))
    logs = sorted((match.string, match["pid"]) for match in matches)
    for name, pid in logs[: max(0, len(logs) - MAX_LOGS + 1)]:
        if not Path("/proc", pid).exists():
            with suppress(OSError):  # keep logs that only another user can delete
                (directory / name).unlink()
