"""Facts that the controller, the modules on workers and the programs of a run's unit share.

Paths, exit codes, ports and times, each stated here once. Python 3.9, standard library: workers
import it.
"""

from __future__ import annotations

import re

ROOT = "/opt/tpufleet"
"""Environments, releases and the programs of the fleet on a worker."""
STATE_DIR = "/var/lib/tpufleet"
"""What runs write: ``runs/RUN`` holds the log, the heartbeat, the metrics and the exit status."""
ETC_DIR = "/etc/tpufleet"
"""What the unit of a run needs, in ``runs/RUN``. Only root writes there."""
USER = "tpufleet"
"""The user that trainers run as. Roles have its uid as ``tpufleet_uid``."""
WORKER_FORMAT = 2
"""Version of the programs that setup installs for runs, and of the files that they read.

Increase it when programs of one version cannot start a launch of the next. A worker with another
number needs setup before it can start a run.
"""
DONE_MARKER = "tpufleet-done.json"
"""The file beside the checkpoints of a run that is done."""

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""The name of a run, which is also the instance of a unit and the name of a file."""

# Exit codes of a trainer and of its unit (docs/own_trainer.md). Any other is a crash.
DONE = 0
BAD_CONFIG = 2
NOT_A_NUMBER = 3
SAVED = 75
RENDEZVOUS_FAILED = 76
PEER_ENDED = 77
NOT_SHARED = 78

RENDEZVOUS_SECONDS = 120
"""How long the processes of an attempt wait for each other, unless the launch says otherwise."""

COORDINATOR_PORT = 8476
ATTEMPT_PORTS = 1000
"""How many attempts have ports of their own. The rendezvous is as far above the coordinator."""
MEGASCALE_PORT = 8081
METRICS_PORT = 8431


def coordinator_port(attempt: int, chip: int = -1) -> int:
    """Return the coordinator's port of an attempt.

    Consecutive attempts have different ports, so a process that an earlier attempt left behind does
    not block the next one. Runs on different chips of a worker never share a port.
    """
    return COORDINATOR_PORT + 2 * ATTEMPT_PORTS * (chip + 1) + attempt % ATTEMPT_PORTS


def rendezvous_port(attempt: int, chip: int = -1) -> int:
    """Return the port at which process 0 of an attempt waits for the others."""
    return coordinator_port(attempt, chip) + ATTEMPT_PORTS
