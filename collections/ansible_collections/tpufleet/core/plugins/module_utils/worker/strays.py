"""Strays: processes that hold an accelerator device but belong to no run. Lists and ends them."""

from __future__ import annotations

import os
import pwd
import re
import select
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .devices import device_files, open_files, printable

PROC = Path("/proc")
KILL_SECONDS = 5
_RUN = re.compile(
    r"^\d+:[^:\n]*:/system\.slice/(?:.*/)?tpufleet-run@[^/\n]+\.service(?:/|$)", re.MULTILINE
)
"""A line of /proc/PID/cgroup for a process in the unit of a run."""


@dataclass(frozen=True)
class Stray:
    """A process that holds a device but belongs to no run.

    ``started_ticks`` is its start time in clock ticks after boot (proc(5)). ``since`` is the same
    time in UTC, such as ``2026-01-31T12:00:00Z``.
    """

    pid: int
    started_ticks: int
    user: str
    command: str
    since: str
    device: str

    @property
    def id(self) -> str:
        """The pid and the start time, which identify the process, because pids are reused."""
        return f"{self.pid}-{self.started_ticks}"

    def to_json(self) -> dict[str, str | int]:
        """Return the fields that the module stray returns, as a dictionary of JSON types."""
        fields = ("id", "pid", "user", "command", "since", "device")
        return {name: getattr(self, name) for name in fields}


def strays(pattern: str, proc: Path = PROC) -> list[Stray]:
    """List the processes that hold a device but belong to no run, sorted by pid.

    ``pattern`` is the glob of the device files, ``proc`` the directory of procfs.
    """
    devices = {str(path) for path in device_files(pattern)}
    candidates = (_stray(folder, devices) for folder in proc.glob("[0-9]*"))
    return sorted((stray for stray in candidates if stray), key=lambda stray: stray.pid)


def end(chosen: Collection[Stray], pattern: str, grace_s: float) -> None:
    """Send TERM to the chosen processes, and later KILL to those that still hold a device.

    Before each signal, checks that the pid was not reused and that the process is still a stray.
    Raises OSError.

    Args:
        chosen: the processes, as ``strays`` has listed them.
        pattern: the glob of the device files.
        grace_s: seconds between TERM and KILL.
    """
    handles: dict[int, Stray] = {}
    try:
        for stray in chosen:
            try:
                handle = os.pidfd_open(stray.pid)
            except ProcessLookupError:
                continue
            # The handle keeps referring to this process, even if its pid is reused.
            handles[handle] = stray
        _send(signal.SIGTERM, handles, pattern)
        _wait(handles, grace_s)
        if _send(signal.SIGKILL, handles, pattern):
            _wait(handles, KILL_SECONDS)
    finally:
        for handle in handles:
            os.close(handle)


def _send(signal_number: signal.Signals, handles: dict[int, Stray], pattern: str) -> bool:
    """Send a signal to the remaining strays in ``handles``; return whether there were any.

    ``handles`` maps the file descriptors of the processes (pidfd_open(2)) to the processes.
    ``pattern`` is the glob of the device files.
    """
    stray_ids = {stray.id for stray in strays(pattern)}
    remaining = [handle for handle, stray in handles.items() if stray.id in stray_ids]
    for handle in remaining:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal_number)
    return bool(remaining)


def _wait(handles: Collection[int], seconds: float) -> None:
    """Wait until all processes have ended; at most ``seconds``."""
    remaining, deadline = set(handles), time.monotonic() + seconds
    poll = select.poll()
    for handle in remaining:
        poll.register(handle, select.POLLIN)
    while remaining and (remaining_s := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(remaining_s * 1000):
            poll.unregister(handle)
            remaining.discard(handle)


def _stray(folder: Path, devices: set[str]) -> Stray | None:
    """Return the stray whose /proc directory is ``folder``; None if it is no stray or has ended."""
    held_devices = sorted(devices & open_files(folder))
    if not held_devices:
        return None
    try:
        if _RUN.search(_text(folder / "cgroup")):
            return None
        # The file ``stat`` has the program's name in parentheses. The name may contain spaces
        # and parentheses, so split after the last parenthesis.
        ticks = int(_text(folder / "stat").rpartition(")")[2].split()[19])
        uid = int(_first_group(r"^Uid:\s+(\d+)", folder / "status"))
        booted_s = int(_first_group(r"^btime (\d+)", folder.parent / "stat"))
        command = _text(folder / "cmdline") or _text(folder / "comm")
    except (OSError, ValueError, IndexError):
        return None
    started = time.gmtime(booted_s + ticks / os.sysconf("SC_CLK_TCK"))
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", started)
    return Stray(int(folder.name), ticks, _user(uid), printable(command), since, held_devices[0])


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _first_group(pattern: str, file: Path) -> str:
    """Return the text in a file that the first group of the regex ``pattern`` matches.

    Raises ValueError if there is no match, OSError if the file cannot be read.
    """
    match = re.search(pattern, _text(file), re.MULTILINE)
    if not match:
        raise ValueError(f"{file} has no {pattern}")
    return match[1]


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
