"""Copies of directories from the TPU's leader (worker 0) over the internal network.

Runs on workers as root. The role fleet_ssh configures the connection and the directories that the
leader serves.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from .os_errors import output_says_disk_is_full

PEER_DIR = Path("/etc/tpufleet/peer")
"""Directory of the worker's key and ssh configuration, written by the role fleet_ssh."""
LEADER = "leader"
"""Host name of the leader in the worker's ssh configuration."""
TRIES = 5
# Exit codes of rsync (rsync(1), "EXIT VALUES"). 10, 12: error in the connection; 255: ssh failed.
_SSH_FAILED = {10, 12, 255}
# 5: the rsync daemon refused access ("@ERROR"), or ssh failed before rsync's protocol began.
_NO_START = 5


class FromLeaderError(Exception):
    """A copy from the leader failed; the message is one line for the user."""


class LeaderUnreachableError(FromLeaderError):
    """The leader cannot be reached, so other copies from it would fail too."""


class DiskFullError(FromLeaderError):
    """The disk of this worker is full."""


def has_leader() -> bool:
    """Return whether this worker can copy from a leader.

    False on the leader itself and on a TPU with one worker.
    """
    return (PEER_DIR / "ssh_config").is_file() and (PEER_DIR / "known_hosts").is_file()


def pull(
    module: str,
    path: str,
    destination: Path,
    *,
    options: Sequence[str] = (),
    seconds: int = 1800,
) -> None:
    """Copy the leader's directory ``path`` in ``module`` to ``destination``.

    Deletes files that the leader does not have. All copied files belong to root. If a copy is
    interrupted, the next call continues it.

    Args:
        module: the name of the leader's rsync module, such as ``cache`` or ``releases`` (role
            variable ``fleet_ssh_serves``).
        path: a path in the module, without a slash at either end; empty for the whole module.
        destination: a directory, created if it is missing; its parent must exist.
        options: additional options of rsync(1).
        seconds: the time limit for all tries together.

    Raises:
        LeaderUnreachableError: the leader cannot be reached.
        DiskFullError: there is no space left for the copy.
        FromLeaderError: the leader refuses access, does not have the directory, or is too slow.
    """
    if not has_leader():
        raise FromLeaderError(
            "this worker has no leader configured. Configure it: "
            "ansible-playbook setup.yml --tags fleet_ssh"
        )
    source = f"{LEADER}::{module}/{path}".rstrip("/") + "/"
    command = ["rsync", "--recursive", "--links", "--perms", "--times", "--delete"]
    command += ["--partial-dir=.partial", "--chown=0:0", *options]
    command += ["--rsh", f"ssh -F {PEER_DIR}/ssh_config", source, f"{destination}/"]
    deadline = time.monotonic() + seconds
    for attempt in range(1, TRIES + 1):
        try:
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=max(deadline - time.monotonic(), 1),
            )
        except FileNotFoundError:
            raise FromLeaderError(
                "rsync is missing. Install it: ansible-playbook setup.yml --tags base"
            ) from None
        except subprocess.TimeoutExpired:
            raise FromLeaderError(
                f"copying {module}/{path} from the leader took longer than {seconds} s"
            ) from None
        if result.returncode == 0:
            return
        unreachable = result.returncode in _SSH_FAILED or (
            result.returncode == _NO_START and "@ERROR" not in result.stderr
        )
        if not unreachable or attempt == TRIES:
            error_class = LeaderUnreachableError if unreachable else FromLeaderError
            if output_says_disk_is_full(result.stderr):
                error_class = DiskFullError
            raise error_class(
                f"copying {module}/{path} from the leader failed: {_error_line(result.stderr)}"
            )
        # sshd refuses some of many simultaneous connections (MaxStartups): retry at a random time.
        time.sleep(random.uniform(0.2, 1.0) * attempt)  # noqa: S311 - not a secret


def _error_line(output: str) -> str:
    """Return the first line of rsync's output that names a cause ("rsync error:" lines do not)."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith("rsync error:")]
    return (causes or lines or ["no error output"])[0]
