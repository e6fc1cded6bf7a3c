"""Reconcile loop: runs the local cloud's background steps after changes and at scheduled times."""

import logging
import threading
from collections.abc import Callable, Sequence

AFTER_AN_ERROR_S = 5.0
# A step returns the seconds until it must run again, or None to run only after the next ``wake``.
Step = Callable[[], float | None]


class ReconcileLoop:
    """A thread that runs all steps after each ``wake`` and whenever a step is due."""

    def __init__(self, steps: Sequence[Step], log: logging.Logger) -> None:
        self._steps = tuple(steps)
        self._log = log
        self._due = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="reconcile", daemon=True)

    def start(self) -> None:
        """Start the thread; it immediately runs all steps once."""
        self._thread.start()

    def wake(self) -> None:
        """Make the thread run all steps; call it after a change."""
        self._due.set()

    def stop(self) -> None:
        """Stop the thread; wait until the steps in progress are finished."""
        self._stopping = True
        self._due.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._due.clear()
            waits = [wait for step in self._steps if (wait := self._guarded(step)) is not None]
            self._due.wait(max(0.01, min(waits)) if waits else None)

    def _guarded(self, step: Step) -> float | None:
        try:
            return step()
        except Exception:
            self._log.exception("a reconcile step failed")
            return AFTER_AN_ERROR_S
