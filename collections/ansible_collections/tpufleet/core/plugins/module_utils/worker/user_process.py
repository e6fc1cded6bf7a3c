"""Programs that modules run as the trainer's user, with access to this worker's devices."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from .contract import USER
from .devices import groups

MAX_OUTPUT_BYTES = 1 << 20
"""Maximum number of bytes that are returned from the end of each output stream."""


def run_as_user(
    command: Sequence[str],
    variables: Mapping[str, str],
    seconds: int,
    device_glob: str = "",
    directory: str = "/",
) -> subprocess.CompletedProcess[str]:
    """Run a command as the trainer's user with device access; return its exit code and output.

    The output is everything written before the command exits, at most the last MAX_OUTPUT_BYTES of
    each stream. ``variables`` is the whole environment of the command, and its PATH is searched for
    the program. After ``seconds``, kills the processes of the command's session and raises
    subprocess.TimeoutExpired. A process that has left the session (setsid(2)) may still run.
    """
    account = pwd.getpwnam(USER)
    group_ids = os.getgrouplist(USER, account.pw_gid)
    # Write the output to files: a process that has left the session would keep a pipe open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            ["/usr/bin/env", *command],  # env(1) searches the PATH of ``variables`` for the program
            env=dict(variables),
            cwd=directory,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=sorted({*group_ids, *groups(device_glob)}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        return subprocess.CompletedProcess(list(command), code, _end(output), _end(errors))


def _end(stream: IO[bytes]) -> str:
    """Return the last MAX_OUTPUT_BYTES of a file as text."""
    size = os.fstat(stream.fileno()).st_size
    content = os.pread(stream.fileno(), MAX_OUTPUT_BYTES, max(size - MAX_OUTPUT_BYTES, 0))
    return content.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
