"""Constants shared by the controller, modules on workers, and the programs of a run's unit.

They are paths, exit codes, ports and timeouts. The programs of the unit are in roles/run/files.
These programs and the files of this directory run on workers, so they must work with Python 3.9
and its standard library alone.
"""

from __future__ import annotations

import re

ROOT = "/opt/tpufleet"
"""Directory of environments, releases and tpufleet's own programs on a worker."""
STATE_DIR = "/var/lib/tpufleet"
"""Directory that runs write to.

``runs/RUN`` in it has the run's log, heartbeat, metrics and exit status.
"""
ETC_DIR = "/etc/tpufleet"
"""Directory that only root writes to. ``runs/RUN`` in it has the files that a run's unit needs."""
USER = "tpufleet"
"""The user that trainers run as. The roles' variable ``tpufleet_uid`` is the uid of this user."""
WORKER_FORMAT = 5
"""Version of the programs that setup installs for runs, and of the files that they read.

Increase it with each change after which the programs that are already on workers can no longer read
the files of a launch. A worker that has another version than the controller needs setup.yml before
it can start a run.
"""
DONE_MARKER = "tpufleet-done.json"
"""Name of the file beside a run's checkpoints that marks the run as done."""

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""Pattern of a run's name, which is also a systemd instance name and a file name."""
ATTEMPT_START = re.compile(r"--- (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) attempt \d{1,9}\b")
"""Pattern of the line with which an attempt begins in a run's log. Its group is the time in UTC."""
OUTPUTS = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,221}(/[A-Za-z0-9._=@+:,~ -]+)+")
"""Pattern of the URL of a run's stored output in a bucket."""
IMAGE = re.compile(
    r"(?P<host>[a-z0-9][a-z0-9-]*(?:(?:\.[a-z0-9-]+)+(?::[0-9]{1,5})?|:[0-9]{1,5}))"
    r"(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)+@sha256:(?P<digest>[0-9a-f]{64})"
)
"""Pattern of a container image, ``REGISTRY/NAME@sha256:DIGEST``.

A tag is not accepted, because only a digest identifies the files of an image.
https://distribution.github.io/distribution/spec/api/
"""

# Exit codes of a trainer and of its unit (docs/own_trainer.md). Any other code is a crash.
DONE = 0
BAD_CONFIG = 2
NOT_A_NUMBER = 3
SAVED = 75
RENDEZVOUS_FAILED = 76
PEER_ENDED = 77
NOT_SHARED = 78

RENDEZVOUS_SECONDS = 120
"""Default time limit of the rendezvous of an attempt's processes, in seconds."""

COORDINATOR_PORT = 8476
ATTEMPT_PORTS = 1000
"""Number of consecutive attempts of a run that have different coordinator ports.

The rendezvous port of an attempt is its coordinator port plus this number.
"""
MEGASCALE_PORT = 8081
METRICS_PORT = 8431


def coordinator_port(attempt: int, chip: int = -1) -> int:
    """Return the port of JAX's coordinator in an attempt.

    ``chip`` is the index of the only chip that the run uses on its worker; -1 for all chips.
    Consecutive attempts have different ports, so a process left over from an earlier attempt does
    not block the next one. Runs on different chips of a worker never share a port.
    """
    return COORDINATOR_PORT + 2 * ATTEMPT_PORTS * (chip + 1) + attempt % ATTEMPT_PORTS


def rendezvous_port(attempt: int, chip: int = -1) -> int:
    """Return the port at which process 0 of an attempt waits for the other processes.

    ``chip`` is described at ``coordinator_port``.
    """
    return coordinator_port(attempt, chip) + ATTEMPT_PORTS
