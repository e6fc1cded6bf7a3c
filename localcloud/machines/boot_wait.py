"""Wait until a machine that boots answers ssh, or say why it does not."""

import socket
import time
from collections.abc import Callable
from ipaddress import IPv4Address

from localcloud.machines.seam import MachineError


def until_ssh(
    name: str,
    address: IPv4Address,
    *,
    deadline_s: float,
    patience_s: float,
    alive: Callable[[str], bool],
    last_words: Callable[[str], str],
) -> None:
    """Return when the machine's sshd answers; raise MachineError if it dies or is too late.

    ``patience_s`` is how long one greeting may take.
    """
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        if answers_ssh(address, patience_s):
            return
        if not alive(name):
            raise MachineError(f"{name}: it does not boot; {last_words(name)}")
        time.sleep(0.1)
    raise MachineError(f"{name}: no ssh on {address} after {deadline_s:.0f} s; {last_words(name)}")


def answers_ssh(address: IPv4Address, patience_s: float) -> bool:
    """Tell whether an sshd greets on port 22 (RFC 4253, section 4.2) within ``patience_s``."""
    try:
        with socket.create_connection((str(address), 22), timeout=1.0) as connection:
            connection.settimeout(patience_s)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
