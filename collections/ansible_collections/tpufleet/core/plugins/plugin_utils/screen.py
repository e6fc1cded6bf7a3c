"""What a person sees while a playbook runs: printed lines, and a live block beneath them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from .live_block import LiveBlock

REDRAWN_EVERY_S = 0.2
QUIET_S = 9.0
"""Without a terminal, a line of progress at the latest after so long a silence."""


class Screen:
    """Prints through core's display, and keeps the live block out of its way.

    Whatever else prints through the display (warnings, prompts, what an action plugin tells) goes
    by here as well: core has no other place where a callback could learn of it, so that its
    methods are wrapped on the one display object. In a worker's fork the wrapped method hands on
    to core's own, which sends the line to the main process.
    """

    def __init__(
        self, display: Any, terminal: TextIO | None, live: Callable[[float], list[str]]
    ) -> None:
        """Wrap the display; ``live`` gives the live lines at a time (s), none while idle."""
        self._print, self._prompt = display.display, display.prompt_until
        self._live = live
        self._block = LiveBlock(terminal) if terminal else None
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._pid = os.getpid()
        self._last = time.monotonic()
        self._asking = False
        self.told: Callable[[str], bool] = lambda _text: False
        display.display, display.prompt_until = self.display, self.prompt_until
        self._restore = (display, self._print, self._prompt)
        self._ticker = threading.Thread(target=self._tick, name="live view", daemon=True)
        self._ticker.start()

    def display(self, msg: str, *positional: Any, **named: Any) -> Any:
        """Print in place of the display's own method; progress goes into the live block.

        What is told ``screen_only`` while a task runs is its progress: a line for the person who
        waits, of no use in any log.
        """
        if os.getpid() != self._pid:
            return self._print(msg, *positional, **named)
        with self._lock:
            if named.get("screen_only") and self.told(str(msg)) and self._block:
                self._draw()
                return None
            if self._block:
                self._block.hide()
            self._last = time.monotonic()
            return self._print(msg, *positional, **named)

    def prompt_until(self, *positional: Any, **named: Any) -> Any:
        """Ask in place of the display's own method, with nothing drawn meanwhile."""
        if os.getpid() != self._pid:
            return self._prompt(*positional, **named)
        with self._lock:
            if self._block:
                self._block.hide()
            self._asking = True
        try:
            return self._prompt(*positional, **named)
        finally:
            self._asking = False
            self._last = time.monotonic()

    def close(self) -> None:
        """Take the block away and give the display back as it was."""
        self._stopped.set()
        self._ticker.join(timeout=2)
        with self._lock:
            if self._block:
                self._block.hide()
        display, display.display, display.prompt_until = self._restore[0], *self._restore[1:]

    def _tick(self) -> None:
        while not self._stopped.wait(REDRAWN_EVERY_S if self._block else 1.0):
            with self._lock:
                if not self._asking:
                    self._draw() if self._block else self._break_silence()

    def _draw(self) -> None:
        lines = self._live(time.monotonic())
        if self._block and lines:
            self._block.show(lines)
        elif self._block:
            self._block.hide()

    def _break_silence(self) -> None:
        now = time.monotonic()
        if now - self._last >= QUIET_S and (lines := self._live(now)):
            self._last = now
            self._print("\n".join(lines))
