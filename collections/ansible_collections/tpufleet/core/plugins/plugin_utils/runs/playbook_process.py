"""Process of a playbook, which can be ended together with all its descendants."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

CHECK_EVERY_S = 0.5
TERM_S = 15.0
"""Seconds between SIGTERM and SIGKILL, in which processes can end by themselves."""


def run_process(
    command: Sequence[str],
    directory: Path,
    env: Mapping[str, str],
    output: IO[str],
    reason_to_stop: Callable[[], str],
) -> tuple[int, str]:
    """Run a command until it ends or must be stopped.

    Returns the exit code, and why the command was stopped (empty if it ended by itself).

    Args:
        command: the program and its arguments.
        directory: its working directory.
        env: its environment variables.
        output: the file to which it writes stdout and stderr.
        reason_to_stop: called twice a second. If it returns a reason, all processes of the command
            get SIGTERM, and SIGKILL after TERM_S.
    """
    # The command gets SIGTERM if this process dies, unless setpriv(1) is missing.
    setpriv = shutil.which("setpriv")
    with_parent = [setpriv, "--pdeathsig", "TERM"] if setpriv else []
    with subprocess.Popen(
        [*with_parent, *command],
        cwd=directory,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(CHECK_EVERY_S), ""
                if reason := reason_to_stop():
                    return end_tree(process), reason
        except BaseException:
            # BaseException includes KeyboardInterrupt and the timeout of an Ansible task.
            end_tree(process)
            raise


def end_tree(process: subprocess.Popen[str]) -> int:
    """End a session leader and all its descendants; return the leader's exit code.

    Ansible's forks have their own process groups, so a signal to the leader's group does not reach
    them. All groups are listed first, because they can't be found once the leader has ended. If
    ps(1) is missing or fails, only the leader's group is ended.
    """
    groups = {process.pid}
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        groups |= groups_below(process.pid)
    _signal(groups, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(TERM_S)
    _signal(groups, signal.SIGKILL)
    return process.wait()


def groups_below(pid: int) -> set[int]:
    """Return the process groups of all descendants of ``pid``, without the caller's own group."""
    result = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,pgid="], capture_output=True, text=True, check=True
    )
    children: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in result.stdout.splitlines():
        child, parent, group = map(int, line.split())
        children[parent].append((child, group))
    groups, pending = set(), [pid]
    while pending:
        for child, group in children[pending.pop()]:
            groups.add(group)
            pending.append(child)
    return groups - {os.getpgrp()}


def _signal(groups: set[int], number: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
