"""Take a directory from the TPU's leader over the internal network, with the worker's own key.

For modules that run on a worker as root; the way is made by the role fleet_ssh, and these modules
need to know nothing of it but the names of what the leader serves.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path("/etc/tpufleet/peer")
"""The worker's key and ssh configuration, written by the role fleet_ssh."""
LEADER = "leader"
"""The name of the leader in that configuration."""
TRIES = 5
_SSH_FAILED = {10, 12, 255}  # rsync(1), "EXIT VALUES": socket, protocol stream; ssh's own
_NO_START = 5  # of the daemon's protocol: refused, which "@ERROR" tells, or ssh failed before it


class FromLeaderError(Exception):
    """The leader doesn't give what was asked; the text is one line for a person."""


class LeaderAwayError(FromLeaderError):
    """The leader can't be reached: asking it for something else is of no use."""


def has_leader(folder: Path = FOLDER) -> bool:
    """Tell whether this worker knows a leader to take from: the leader itself and a TPU of one
    worker don't."""
    return (folder / "ssh_config").is_file() and (folder / "known_hosts").is_file()


def pull(
    module: str,
    path: str,
    destination: Path,
    *,
    options: Sequence[str] = (),
    seconds: int = 1800,
    folder: Path = FOLDER,
) -> None:
    """Make ``destination`` what the leader has at ``path`` below the served directory ``module``.

    A directory of it becomes ``destination`` itself; what lies there and not on the leader goes.
    All that comes belongs to root. Interrupted, it is gone on with by the next call.

    Args:
        module: ``cache`` or ``releases``, or another name of ``fleet_ssh_serves``.
        path: below it, without a slash at either end; empty for all of it.
        destination: a directory, made if it isn't there; its parent must be.
        options: more options of rsync(1).
        seconds: how long it may take, tries and all.
        folder: where the worker's key is.

    Raises:
        LeaderAwayError: the leader can't be reached.
        FromLeaderError: it refuses, or hasn't got it.
    """
    if not has_leader(folder):
        raise FromLeaderError(
            "this worker knows no leader: ansible-playbook setup.yml --tags fleet_ssh mends it"
        )
    source = f"{LEADER}::{module}/{path}".rstrip("/") + "/"
    words = ["rsync", "--recursive", "--links", "--perms", "--times", "--delete"]
    words += ["--partial-dir=.partial", "--chown=0:0", *options]
    words += ["--rsh", f"ssh -F {folder}/ssh_config", source, f"{destination}/"]
    until = time.monotonic() + seconds
    for attempt in range(1, TRIES + 1):
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=max(until - time.monotonic(), 1),
            )
        except FileNotFoundError:
            raise FromLeaderError(
                "there is no rsync: ansible-playbook setup.yml --tags base mends it"
            ) from None
        except subprocess.TimeoutExpired:
            raise FromLeaderError(
                f"the leader did not give {module}/{path} within {seconds} s"
            ) from None
        if done.returncode == 0:
            return
        away = done.returncode in _SSH_FAILED or (
            done.returncode == _NO_START and "@ERROR" not in done.stderr
        )
        if not away or attempt == TRIES:
            kind = LeaderAwayError if away else FromLeaderError
            raise kind(f"the leader gives no {module}/{path}: {_why(done.stderr)}")
        # Many workers come at once, and sshd turns some away (MaxStartups): they come back apart.
        time.sleep(random.uniform(0.2, 1.0) * attempt)  # noqa: S311 - no secret


def _why(complaint: str) -> str:
    """Pick the first line that says why: the rest say that it failed."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith("rsync error:")]
    return (telling or lines or ["no word of why"])[0]
