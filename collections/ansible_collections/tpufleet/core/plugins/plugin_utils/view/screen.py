"""Terminal output of a playbook: printed lines with a live block below them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from .live_block import LiveBlock

REDRAW_EVERY_S = 0.2
#: Without a terminal, progress is printed if nothing else was printed for this many seconds.
QUIET_S = 9.0
#: The length in characters up to which progress, or changes of one role, are joined on one line.
LINE = 110


class Screen:
    """Wrapper of Ansible's display that hides the live block while something is printed.

    Warnings, prompts and the output of action plugins bypass the callback plugin and go to the
    display directly. Ansible has no hook for that, so this class replaces methods of the global
    display object. In a forked worker process the replacement calls the original method, which
    sends the line to the main process.
    """

    def __init__(
        self,
        display: Any,
        terminal: TextIO | None,
        live: Callable[[float], list[str]],
        brief: Callable[[float], tuple[str, str] | None],
        take_progress: Callable[[str], bool],
    ) -> None:
        """Replace the methods ``display`` and ``prompt_until`` of Ansible's display.

        Args:
            display: Ansible's display object.
            terminal: the stream to draw on; None for a pipe or a file.
            live: returns the lines of the live block at a monotonic time; empty to show no block.
            brief: returns the task and its progress at a monotonic time. If there is no terminal,
                later progress of the task is appended to the same line. None to print the lines of
                ``live`` instead, because the task has progress messages.
            take_progress: stores a progress message for ``live``; returns False if no task runs.
        """
        self._print, self._prompt = display.display, display.prompt_until
        self._live, self._brief, self._take_progress = live, brief, take_progress
        self._open, self._width = "", 0
        self._held: tuple[str, str, str | None] | None = None
        self._block = LiveBlock(terminal) if terminal else None
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._pid = os.getpid()
        self._last = time.monotonic()
        self._asking = False
        self.fill = False
        """Whether the live block may use more than half of the terminal's rows."""
        display.display, display.prompt_until = self.display, self.prompt_until
        self._display = display
        self._ticker = threading.Thread(target=self._tick, name="live view", daemon=True)
        self._ticker.start()

    def display(self, msg: str, *positional: Any, **named: Any) -> Any:
        """Print a message, or show it in the live block if it is a progress message.

        A ``screen_only`` message during a task is a progress message. This method replaces
        Ansible's ``Display.display`` and has its arguments.
        """
        if os.getpid() != self._pid:
            with _signals_blocked():
                return self._print(msg, *positional, **named)
        with self._lock:
            if named.get("screen_only") and self._take_progress(str(msg)) and self._block:
                self._draw()
                return None
            self._make_room()
            self._last = time.monotonic()
            return self._print(msg, *positional, **named)

    def append(self, before: str, word: str, after: str, color: str | None) -> None:
        """Print ``before``, ``word`` and ``after`` as one line.

        Without a terminal, successive words with the same ``before`` and ``after`` are joined on
        one line. That line is printed before the next other line, after QUIET_S, or by close().
        ``color`` is an Ansible color.
        """
        with self._lock:
            if self._block:
                self.display(f"{before}{word}{after}", color=color)
                return
            held = self._held
            joined = f"{held[0]}; {word}" if held else ""
            alike = held and held[1:] == (after, color) and joined.startswith(before)
            if alike and len(joined) + len(after) <= LINE:
                self._held = (joined, after, color)
                return
            self._end_line()
            self._held = (f"{before}{word}", after, color)
            self._last = time.monotonic()

    def prompt_until(self, *positional: Any, **named: Any) -> Any:
        """Prompt the user while the live block is hidden. Replaces ``Display.prompt_until``."""
        if os.getpid() != self._pid:
            return self._prompt(*positional, **named)
        with self._lock:
            self._make_room()
            self._asking = True
        try:
            return self._prompt(*positional, **named)
        finally:
            self._asking = False
            self._last = time.monotonic()

    def close(self) -> None:
        """Remove the block and restore the display's methods."""
        self._stopped.set()
        self._ticker.join(timeout=2)
        with self._lock:
            self._make_room()
        self._display.display, self._display.prompt_until = self._print, self._prompt

    def _tick(self) -> None:
        while not self._stopped.wait(REDRAW_EVERY_S if self._block else 1.0):
            with self._lock:
                if not self._asking:
                    self._draw() if self._block else self._break_silence()

    def _draw(self) -> None:
        lines = self._live(time.monotonic())
        if self._block and lines:
            self._block.show(lines, self.fill)
        elif self._block:
            self._block.hide()

    def _break_silence(self) -> None:
        now = time.monotonic()
        # With self.fill, the lines of the live block have been printed already, in full.
        if self.fill or now - self._last < QUIET_S or not (lines := self._live(now)):
            return
        self._last = now
        if self._held:
            self._end_line()
        if not (brief := self._brief(now)):
            self._end_line()
            self._print("\n".join(lines))
            return
        what, how_far = brief
        if self._open != what:
            self._end_line()
            self._open, self._width, text = what, 0, f"  {what}  {how_far}"
        elif self._width + len(how_far) + 2 > LINE:
            self._print("")
            self._width, text = 0, f"    {how_far}"
        else:
            text = f", {how_far}"
        self._width += len(text)
        self._print(text, newline=False)

    def _make_room(self) -> None:
        if self._block:
            self._block.hide()
        self._end_line()

    def _end_line(self) -> None:
        if self._open:
            self._open = ""
            self._print("")
        if self._held:
            (text, after, color), self._held = self._held, None
            self._print(f"{text}{after}", color=color)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Delay SIGINT and SIGTERM while a worker process prints from its main thread.

    To send a message, the process takes the lock of Ansible's result queue, and so does the main
    process before it ends. If the worker died with the lock, ansible-playbook would hang after
    CTRL+C. Other threads, task results and warnings are not protected.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
