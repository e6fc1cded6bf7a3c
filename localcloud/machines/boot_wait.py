"""Check of the ssh server of a booting machine."""

import socket
from ipaddress import IPv4Address


def answers_ssh(address: IPv4Address, greeting_s: float) -> bool:
    """Return whether sshd on port 22 sends its greeting (RFC 4253, 4.2) within ``greeting_s``."""
    try:
        with socket.create_connection((str(address), 22), timeout=1.0) as connection:
            connection.settimeout(greeting_s)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
