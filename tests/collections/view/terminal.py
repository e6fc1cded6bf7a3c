"""Playbooks on a pseudoterminal, and a minimal emulator that shows the screen after redrawing."""

import os
import pty
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.process_tree import kill_tree
from localcloud.local_cloud import PROJECT_ROOT

SECONDS = 90
_PIECES = re.compile(r"\x1b\[(\d*)([AJ])|\x1b\[[\d;]*m|(\r)|(\n)|([^\x1b\r\n]+)")


def screen_of(output: str) -> list[str]:
    """Return the final lines of the screen.

    Applies the ECMA-48 sequences CUU (cursor up) and ED 0 (erase below), and ignores SGR (colors).
    Lines do not wrap.
    """
    lines, row, column = [""], 0, 0
    for match in _PIECES.finditer(output):
        count, command, carriage_return, newline, text = match.groups()
        if command == "A":
            row = max(0, row - int(count or 1))
        elif command == "J":
            lines[row] = lines[row][:column]
            del lines[row + 1 :]
        elif carriage_return:
            column = 0
        elif newline:
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif text:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]


@dataclass
class Terminal:
    """A playbook on a pseudoterminal, and what it has written there so far."""

    process: subprocess.Popen[bytes]
    keyboard: int
    written: bytes = b""

    def read_until(self, matches: Callable[[list[str]], bool]) -> list[str]:
        """Read until the screen matches or the playbook has ended; return the screen."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                chunk = os.read(self.keyboard, 65536)
            except OSError:  # the playbook has ended, which closes the pseudoterminal
                break
            self.written += chunk
            if not chunk or matches(self.screen):
                break
        return self.screen

    @property
    def screen(self) -> list[str]:
        return screen_of(self.written.decode(errors="replace"))


@contextmanager
def on_terminal(command: list[str], environment: dict[str, str]) -> Iterator[Terminal]:
    controller_fd, terminal_fd = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=PROJECT_ROOT,
        env=environment,
        preexec_fn=lambda: os.login_tty(terminal_fd),  # noqa: PLW1509 - CTRL+C must send a signal
    )
    os.close(terminal_fd)
    try:
        yield Terminal(process, controller_fd)
    finally:
        kill_tree(process.pid)
        process.wait()
        os.close(controller_fd)
