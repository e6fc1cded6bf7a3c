"""How trainers end after another has ended, for `attempt` and `tpufleet_launch`.

Python 3.9, standard library.
"""

import os
import signal
import time

CRASH_GRACE = 20  # seconds that the others may take to exit after one has crashed
EXIT_GRACE = 15  # seconds to wait until the others exit by themselves after one has saved


def die_of(number):
    """End this process by a trainer's signal, which systemd then reports, without a core dump."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    time.sleep(1)
