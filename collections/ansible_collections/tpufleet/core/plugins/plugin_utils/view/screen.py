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
from .progress import ProgressMessage

REDRAW_EVERY_S = 0.2
#: Without a terminal, progress is printed if nothing else was printed for this many seconds.
QUIET_S = 9.0
#: Without a terminal, texts about the same task or role share a line of at most this length.
MAX_LINE_CHARS = 110


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
        live_lines: Callable[[float], list[str]],
        brief_progress: Callable[[float], tuple[str, str] | None],
        store_progress: Callable[[ProgressMessage], bool],
    ) -> None:
        """Replace the methods ``display`` and ``prompt_until`` of Ansible's display.

        Args:
            terminal: the stream to draw on; None for a pipe or a file.
            live_lines: takes a monotonic time and returns the lines of the live block, if any.
            brief_progress: takes a monotonic time and returns two texts for output without a
                terminal: the task, which begins a line, and the progress, which is appended to it.
                If it returns None, the ``live_lines`` are printed instead.
            store_progress: stores a progress message; returns False if no task runs.
        """
        self._original_display, self._original_prompt = display.display, display.prompt_until
        self._live_lines = live_lines
        self._brief_progress = brief_progress
        self._store_progress = store_progress
        self._open_task, self._line_width = "", 0
        self._pending: tuple[str, str, str | None] | None = None
        self._block = LiveBlock(terminal) if terminal else None
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._pid = os.getpid()
        self._last_output = time.monotonic()
        self._is_prompting = False
        self.fill = False
        """Whether the live block may use more than half of the terminal's rows."""
        display.display, display.prompt_until = self.display, self.prompt_until
        self._display = display
        self._ticker = threading.Thread(target=self._tick, name="live view", daemon=True)
        self._ticker.start()

    def display(self, msg: str, *args: Any, **kwargs: Any) -> Any:
        """Print a message, or show it in the live block if it is a ProgressMessage during a task.

        This method replaces Ansible's ``Display.display`` and has its arguments.
        """
        if os.getpid() != self._pid:
            with _signals_blocked():
                return self._original_display(msg, *args, **kwargs)
        with self._lock:
            is_stored = isinstance(msg, ProgressMessage) and self._store_progress(msg)
            if is_stored and self._block:
                self._draw_block()
                return None
            self._clear_for_output()
            self._last_output = time.monotonic()
            return self._original_display(msg, *args, **kwargs)

    def append(self, prefix: str, item: str, suffix: str, color: str | None) -> None:
        """Print ``prefix``, ``item`` and ``suffix`` as one line.

        Without a terminal, successive items with the same ``prefix``, ``suffix`` and ``color`` (an
        Ansible color) are joined on one line. The joined line is printed before any other output,
        after QUIET_S without output, or by close().
        """
        with self._lock:
            if self._block:
                self.display(f"{prefix}{item}{suffix}", color=color)
                return
            pending = self._pending
            joined = f"{pending[0]}; {item}" if pending else ""
            continues_line = (
                pending and pending[1:] == (suffix, color) and joined.startswith(prefix)
            )
            if continues_line and len(joined) + len(suffix) <= MAX_LINE_CHARS:
                self._pending = (joined, suffix, color)
                return
            self._end_line()
            self._pending = (f"{prefix}{item}", suffix, color)
            self._last_output = time.monotonic()

    def prompt_until(self, *args: Any, **kwargs: Any) -> Any:
        """Prompt the user while the live block is hidden. Replaces ``Display.prompt_until``."""
        if os.getpid() != self._pid:
            return self._original_prompt(*args, **kwargs)
        with self._lock:
            self._clear_for_output()
            self._is_prompting = True
        try:
            return self._original_prompt(*args, **kwargs)
        finally:
            self._is_prompting = False
            self._last_output = time.monotonic()

    def close(self) -> None:
        """Remove the live block and restore the methods of Ansible's display."""
        self._stopped.set()
        self._ticker.join(timeout=2)
        with self._lock:
            self._clear_for_output()
        self._display.display, self._display.prompt_until = (
            self._original_display,
            self._original_prompt,
        )

    def _tick(self) -> None:
        while not self._stopped.wait(REDRAW_EVERY_S if self._block else 1.0):
            with self._lock:
                if not self._is_prompting:
                    self._draw_block() if self._block else self._print_progress()

    def _draw_block(self) -> None:
        lines = self._live_lines(time.monotonic())
        if self._block and lines:
            self._block.show(lines, self.fill)
        elif self._block:
            self._block.hide()

    def _print_progress(self) -> None:
        now = time.monotonic()
        # If self.fill is set, the progress message has several lines. display() has already printed
        # it, so there is nothing to print here.
        if self.fill or now - self._last_output < QUIET_S or not (lines := self._live_lines(now)):
            return
        self._last_output = now
        if self._pending:
            self._end_line()
        if not (progress := self._brief_progress(now)):
            self._end_line()
            self._original_display("\n".join(lines))
            return
        task, progress_text = progress
        if self._open_task != task:
            self._end_line()
            self._open_task, self._line_width, text = task, 0, f"  {task}  {progress_text}"
        elif self._line_width + len(progress_text) + 2 > MAX_LINE_CHARS:
            self._original_display("")
            self._line_width, text = 0, f"    {progress_text}"
        else:
            text = f", {progress_text}"
        self._line_width += len(text)
        self._original_display(text, newline=False)

    def _clear_for_output(self) -> None:
        if self._block:
            self._block.hide()
        self._end_line()

    def _end_line(self) -> None:
        if self._open_task:
            self._open_task = ""
            self._original_display("")
        if self._pending:
            (text, suffix, color), self._pending = self._pending, None
            self._original_display(f"{text}{suffix}", color=color)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Delay SIGINT and SIGTERM while a worker process prints from its main thread.

    To print, the worker process takes the lock of Ansible's result queue. The main process takes
    the same lock before it ends, so ansible-playbook would hang after CTRL+C if a worker process
    died with the lock. This can still happen while a worker process prints from another thread, or
    sends a result or a warning.
    """
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
