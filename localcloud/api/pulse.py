"""What the cloud does by itself: looks after what waits, when something changed or comes due."""

import logging
import threading
from collections.abc import Callable, Sequence

AFTER_AN_ERROR_S = 5.0
# Tells in how many seconds to look again at the latest; None: when something changes.
Look = Callable[[], float | None]


class Pulse:
    """A thread that looks at everything again after each ``wake`` and whenever a look asked to."""

    def __init__(self, looks: Sequence[Look], log: logging.Logger) -> None:
        self._looks = tuple(looks)
        self._log = log
        self._due = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Begin to look, at once for the first time."""
        self._thread.start()

    def wake(self) -> None:
        """Look soon: something may have changed."""
        self._due.set()

    def stop(self) -> None:
        """End; returns when nothing is being looked at."""
        self._stopping = True
        self._due.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._due.clear()
            waits = [wait for look in self._looks if (wait := self._guarded(look)) is not None]
            self._due.wait(max(0.01, min(waits)) if waits else None)

    def _guarded(self, look: Look) -> float | None:
        try:
            return look()
        except Exception:
            self._log.exception("looking after what waits failed")
            return AFTER_AN_ERROR_S
