"""Copies of directories from the TPU's leader over the internal network.

Runs on workers as root. The role fleet_ssh configures the connection and what the leader serves.
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
_SSH_FAILED = {10, 12, 255}  # rsync(1), "EXIT VALUES": socket, protocol stream; and ssh's own
_NO_START = 5  # the daemon refused ("@ERROR"), or ssh failed before its protocol began


class FromLeaderError(Exception):
    """The leader refused or failed; the text is one line for users."""


class LeaderUnreachableError(FromLeaderError):
    """No connection to the leader; another request would fail as well."""


def has_leader(folder: Path = FOLDER) -> bool:
    """Return whether this worker has a leader: false on the leader and on a TPU of one worker."""
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
    """Make ``destination`` a copy of the leader's directory ``path`` below ``module``.

    Files that the leader does not have are deleted. Everything belongs to root. The next call
    continues an interrupted copy.

    Args:
        module: a name of ``fleet_ssh_serves``, such as ``cache`` or ``releases``.
        path: below it, without a slash at either end; empty for all of it.
        destination: a directory; only its parent must exist.
        options: additional options of rsync(1).
        seconds: the limit for all attempts together.
        folder: the directory of the worker's key.

    Raises:
        LeaderUnreachableError: no connection to the leader.
        FromLeaderError: the leader refuses, or does not have the directory.
    """
    if not has_leader(folder):
        raise FromLeaderError(
            "no leader is configured. Configure it: ansible-playbook setup.yml --tags fleet_ssh"
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
                "rsync is missing. Install it: ansible-playbook setup.yml --tags base"
            ) from None
        except subprocess.TimeoutExpired:
            raise FromLeaderError(
                f"copying {module}/{path} from the leader took longer than {seconds} s"
            ) from None
        if done.returncode == 0:
            return
        unreachable = done.returncode in _SSH_FAILED or (
            done.returncode == _NO_START and "@ERROR" not in done.stderr
        )
        if not unreachable or attempt == TRIES:
            kind = LeaderUnreachableError if unreachable else FromLeaderError
            raise kind(
                f"copying {module}/{path} from the leader failed: {_error_line(done.stderr)}"
            )
        # sshd refuses some of many workers at once (MaxStartups): they retry at random times.
        time.sleep(random.uniform(0.2, 1.0) * attempt)  # noqa: S311 - not a secret


def _error_line(output: str) -> str:
    """Return the first line with a cause; the following ones only say that rsync failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith("rsync error:")]
    return (causes or lines or ["no error output"])[0]
