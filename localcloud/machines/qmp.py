"""Client of the QEMU Machine Protocol (qmp-spec): sends commands to a running qemu's socket."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

SOCKET = "qmp"
TIMEOUT_S = 5.0


def ask(directory: Path, command: str) -> dict[str, Any]:
    """Send a command to the qemu whose socket is in ``directory`` and return its response.

    Raises OSError if no qemu is running, if it rejects the command, or if one read or write takes
    longer than TIMEOUT_S.
    """
    response: dict[str, Any] = {}
    with _session(directory) as lines:
        for request in ("qmp_capabilities", command):
            _send(lines, request)
            response = {"event": ""}
            while "event" in response:  # qemu may send events before the response
                response = json.loads(lines.readline() or '{"error": "qemu closed the connection"}')
    if "return" not in response:
        raise OSError(f"qemu refused the command {command}: {response.get('error')}")
    return response["return"]


def quit_now(directory: Path) -> None:
    """Make the qemu whose socket is in ``directory`` quit, and wait until it closes the connection.

    For the guest, this is a loss of power; qemu itself closes its files cleanly. Returns without an
    error if no qemu is running or one read takes longer than TIMEOUT_S.
    """
    with contextlib.suppress(OSError), _session(directory) as lines:
        for command in ("qmp_capabilities", "quit"):
            _send(lines, command)
        while lines.readline():
            pass


@contextlib.contextmanager
def _session(directory: Path) -> Iterator[TextIO]:
    descriptor = os.open(directory, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT_S)
            # Connect through a descriptor of the directory, because unix(7) limits a socket's path
            # to 107 bytes and the path of a machine's directory can be longer.
            connection.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")
            with connection.makefile("rw", encoding="utf-8") as lines:
                lines.readline()  # skip qemu's greeting
                yield lines
    finally:
        os.close(descriptor)


def _send(lines: TextIO, command: str) -> None:
    lines.write(json.dumps({"execute": command}) + "\n")
    lines.flush()
