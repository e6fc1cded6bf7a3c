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
"""Without a terminal, a word of progress at the latest after so long a silence."""
LINE = 110
"""A line that goes on, of progress or of a role's changes, goes on to so many characters."""


class Screen:
    """Prints through core's display, and keeps the live block out of its way.

    Whatever else prints through the display (warnings, prompts, what an action plugin tells) goes
    by here as well: core has no other place where a callback could learn of it, so that its
    methods are wrapped on the one display object. In a worker's fork the wrapped method hands on
    to core's own, which sends the line to the main process.
    """

    def __init__(
        self,
        display: Any,
        terminal: TextIO | None,
        live: Callable[[float], list[str]],
        brief: Callable[[float], tuple[str, str] | None] = lambda _now: None,
    ) -> None:
        """Wrap the display; ``live`` gives the live lines at a time (s), none while idle.

        ``brief`` gives the same in two parts, what is being done and how far it is, where that is
        all there is to say: one line that goes on, for who reads a pipe or a file.
        """
        self._print, self._prompt = display.display, display.prompt_until
        self._live, self._brief = live, brief
        self._open, self._width = "", 0
        self._held: tuple[str, str, str | None] | None = None
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
            self._end_line()
            self._last = time.monotonic()
            return self._print(msg, *positional, **named)

    def goes_on(self, before: str, word: str, after: str, color: str | None) -> None:
        """Print ``before word after``; without a terminal, words between the same on one line.

        The line waits for the next one, for a silence, or for the end.
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
        """Ask in place of the display's own method, with nothing drawn meanwhile."""
        if os.getpid() != self._pid:
            return self._prompt(*positional, **named)
        with self._lock:
            if self._block:
                self._block.hide()
            self._end_line()
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
            self._end_line()
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
        if now - self._last < QUIET_S or not (lines := self._live(now)):
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

    def _end_line(self) -> None:
        if self._open:
            self._open = ""
            self._print("")
        if self._held:
            (text, after, color), self._held = self._held, None
            self._print(f"{text}{after}", color=color)
