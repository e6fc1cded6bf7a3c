"""How `attempt` and `tpufleet_launch` end the other trainers after one trainer has ended."""

import os
import signal
import time

CRASH_GRACE = 20  # seconds until the others are killed after one has crashed
EXIT_GRACE = 15  # seconds until the others get SIGTERM after one has saved and exited


def die_of(number):
    """End this process by the signal that ended its trainer, without a core dump."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    time.sleep(1)
