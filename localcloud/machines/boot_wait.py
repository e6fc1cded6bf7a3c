"""Waiting for the ssh server of a booting machine."""

import socket
import time
from collections.abc import Callable
from ipaddress import IPv4Address

from localcloud.machines.interface import MachineError


def until_ssh(
    name: str,
    address: IPv4Address,
    *,
    deadline_s: float,
    greeting_s: float,
    alive: Callable[[str], bool],
    console_tail: Callable[[str], str],
) -> None:
    """Wait until the machine's sshd responds.

    ``greeting_s`` is the time limit for sshd's greeting on one connection. ``alive`` returns
    whether the machine with a name is running, ``console_tail`` the end of its console log as a
    phrase for an error message. Raises MachineError if the machine stops running, or if sshd does
    not respond within ``deadline_s``.
    """
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        if answers_ssh(address, greeting_s):
            return
        if not alive(name):
            raise MachineError(f"{name}: boot failed; {console_tail(name)}")
        time.sleep(0.1)
    tail = console_tail(name)
    raise MachineError(f"{name}: no ssh on {address} after {deadline_s:.0f} s; {tail}")


def answers_ssh(address: IPv4Address, greeting_s: float) -> bool:
    """Return whether sshd on port 22 sends its greeting (RFC 4253, 4.2) within ``greeting_s``."""
    try:
        with socket.create_connection((str(address), 22), timeout=1.0) as connection:
            connection.settimeout(greeting_s)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
