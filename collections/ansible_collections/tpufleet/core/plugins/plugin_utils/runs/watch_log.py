"""The watch's log: one line for each event, time first, for people."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from ansible.utils.display import Display


class WatchLog:
    """Shows lines and appends them to the file ``path``; ``quiet`` only shows them."""

    def __init__(self, path: Path, quiet: bool) -> None:
        # Playbooks write files beside it, and run in another directory.
        self._path, self._quiet = path.expanduser().absolute(), quiet
        self._lock = threading.Lock()
        if not quiet:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def __call__(self, line: str) -> None:
        """Write a line and show it."""
        text = " ".join(line.split())
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._lock:
            Display().display(f"  {text}")
            if not self._quiet:
                with self._path.open("a", encoding="utf-8") as stream:
                    stream.write(f"{stamp} {text}\n")

    def output_of(self, name: str) -> Path:
        """Return the file for the output of the playbooks that act on a run or a TPU."""
        folder = self._path.with_suffix(".d")
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}.log"
