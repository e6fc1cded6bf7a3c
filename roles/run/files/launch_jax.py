"""Call jax.distributed.initialize, then run a module or script as Python would.

`tpufleet_launch jax` starts this file with the Python of the run's environment. Its arguments are
those that would follow `python`: -m MODULE ARGUMENTS, or SCRIPT ARGUMENTS.
"""

import ipaddress
import os
import runpy
import sys
from pathlib import Path


def initialize(environ):
    """Connect to the run's other JAX processes; ``environ`` has the run contract's variables."""
    import jax

    coordinator = environ["TPUFLEET_COORDINATOR"]
    host = coordinator.rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host)
        # The coordination service has no authentication, so do not listen on all interfaces.
        bind_address = coordinator
    except ValueError:
        bind_address = None
    jax.distributed.initialize(
        coordinator,
        int(environ["TPUFLEET_NUM_PROCESSES"]),
        int(environ["TPUFLEET_PROCESS_ID"]),
        coordinator_bind_address=bind_address,
    )


def exit_at_once(type_, error, traceback):
    """Print an uncaught exception and end this process at once (sys.excepthook).

    A normal exit would wait minutes in JAX's shutdown barrier for the other processes, which wait
    for this one in a collective.
    """
    sys.__excepthook__(type_, error, traceback)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def run(arguments):
    """Run a main program: ``arguments`` are ``-m MODULE ARGUMENTS`` or ``SCRIPT ARGUMENTS``."""
    is_module = arguments[0] == "-m"
    sys.argv = arguments[1:] if is_module else arguments
    # Unless Python was started with -I or -P, the directory of this file is first in sys.path.
    # Replace it with the directory that Python would put there for the main program.
    if Path(sys.path[0]) == Path(__file__).parent:
        sys.path[0] = str(Path.cwd() if is_module else Path(arguments[0]).resolve().parent)
    if is_module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    initialize(os.environ)
    sys.excepthook = exit_at_once
    run(sys.argv[1:])
