"""The log file of the watch: one line for each event, starting with the event's time."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from ansible.utils.display import Display

from ...module_utils.cloud.errors import one_line


class WatchLog:
    """A log that shows each line on the terminal and appends it to the file ``path``.

    If ``quiet`` is set, lines are shown, but not written to the file.
    """

    def __init__(self, path: Path, quiet: bool) -> None:
        # Make the path absolute: log lines name files beside the log, and users must find these
        # files from any directory.
        self._path, self._quiet = path.expanduser().absolute(), quiet
        self._lock = threading.Lock()
        if not quiet:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def __call__(self, line: str) -> None:
        """Show a line and append it to the log with the current time.

        Control characters are removed, because errors of trainers and workers may contain some that
        manipulate a terminal.
        """
        text = one_line(line)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._lock:
            Display().display(f"  {text}")
            if not self._quiet:
                with self._path.open("a", encoding="utf-8") as stream:
                    stream.write(f"{stamp} {text}\n")

    def output_of(self, name: str) -> Path:
        """Return the file for the output of playbooks that act on ``name``, a run or a TPU."""
        folder = self._path.with_suffix(".d")
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}.log"
