"""How `attempt` and `tpufleet_launch` end the other trainers after one trainer has ended."""

import os
import signal
import time

from worker.contract import SAVED

CRASH_GRACE = 20  # seconds from the crash of one trainer until the others are killed
EXIT_GRACE = 15  # seconds from the exit of a trainer that has saved until the others get SIGTERM


class ShutdownSchedule:
    """Schedule of SIGTERM and SIGKILL for the remaining trainers after one trainer has ended.

    ``send`` is a function that sends a signal to the remaining trainers.
    """

    def __init__(self, send):
        self.send = send
        self.term_at = self.kill_at = float("inf")
        self.has_received_term = False

    def plan(self, code):
        """Schedule SIGTERM, and also SIGKILL unless the ended trainer has saved.

        ``code`` is the ended trainer's exit code (not 0), or ``gone`` if its worker was lost.
        """
        now = time.monotonic()
        if code == SAVED:
            self.term_at = min(self.term_at, now + EXIT_GRACE)
        else:
            self.term_at = min(self.term_at, now)
            self.kill_at = min(self.kill_at, now + CRASH_GRACE)

    def send_due(self):
        """Send the signals whose time has come."""
        now = time.monotonic()
        if now >= self.term_at:
            self.term_at = float("inf")
            # Send SIGTERM only once: a second one would interrupt a trainer that is saving.
            if not self.has_received_term:
                self.has_received_term = True
                self.send(signal.SIGTERM)
        if now >= self.kill_at:
            self.kill_at = float("inf")
            self.send(signal.SIGKILL)


def die_of(signal_number):
    """End this process by the signal that ended its trainer, without a core dump."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if signal_number != signal.SIGKILL:
        signal.signal(signal_number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal_number})
    os.kill(os.getpid(), signal_number)
    time.sleep(1)
