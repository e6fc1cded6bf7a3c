"""Watchdog for runs that hang, for example in a collective that another process never joins."""

import faulthandler
import logging
import os
import sys
import threading

from train.run.contract import HUNG, Heartbeat

log = logging.getLogger(__name__)


START_SECONDS = 3600
"""Minimum time limit of the first step, which includes restore and compilation, in seconds."""


class Watchdog:
    """Timer that logs all stacks and exits with code HUNG when no step finishes for too long."""

    def __init__(self, seconds: float, heartbeat: Heartbeat) -> None:
        """Allow ``seconds`` per step, at least START_SECONDS for the first; 0 means no limit."""
        self._seconds, self._heartbeat = seconds, heartbeat
        self._event, self._off = threading.Event(), False
        if seconds:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def step_finished(self) -> None:
        """Restart the countdown.

        Call this after each step, and before a sample or the save of an interrupted run.
        """
        self._event.set()

    def off(self) -> None:
        """Stop the countdown. Call this when all saves are complete."""
        self._off = True
        self._event.set()

    def _watch(self) -> None:
        seconds = max(START_SECONDS, self._seconds)
        while self._event.wait(seconds):
            self._event.clear()
            # off() is never missed: if it was called before clear(), _off is True here; if it is
            # called later, it ends the next wait().
            if self._off:
                return
            seconds = self._seconds
        self._end(seconds)

    def _end(self, seconds: float) -> None:
        try:
            log.error(
                "no step has finished for %g s: exiting after step %s; the stacks of "
                "all threads follow",
                seconds,
                self._heartbeat.step,
            )
            self._heartbeat.write("hung")
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # exit even if writing to stderr fails
            os._exit(HUNG)
