"""QEMU Machine Protocol: send commands to a running qemu over its socket (qmp-spec)."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

SOCKET = "qmp"


def ask(directory: Path, command: str, timeout_s: float) -> dict[str, Any]:
    """Send a command to the qemu whose socket is in ``directory`` and return its answer.

    Raises OSError if there is no qemu, if it refuses, or if one read or write takes longer than
    ``timeout_s``.
    """
    answer: dict[str, Any] = {}
    with _session(directory, timeout_s) as lines:
        for each in ("qmp_capabilities", command):
            _send(lines, each)
            answer = {"event": ""}
            while "event" in answer:  # events may precede the answer
                answer = json.loads(lines.readline() or '{"error": "it hung up"}')
    if "return" not in answer:
        raise OSError(f"qemu refuses {command}: {answer.get('error')}")
    return answer["return"]


def quit_now(directory: Path, timeout_s: float) -> None:
    """Tell the qemu whose socket is in ``directory`` to quit, and wait until it hangs up.

    To the guest it is a power cut; qemu closes its own files properly. Nothing happens if there is
    no qemu, or if it does not obey within ``timeout_s`` per read.
    """
    with contextlib.suppress(OSError), _session(directory, timeout_s) as lines:
        for command in ("qmp_capabilities", "quit"):
            _send(lines, command)
        while lines.readline():
            pass


@contextlib.contextmanager
def _session(directory: Path, timeout_s: float) -> Iterator[TextIO]:
    descriptor = os.open(directory, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            # By descriptor: unix(7) limits a socket's path to 107 bytes, and a machine's is longer.
            connection.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")
            with connection.makefile("rw", encoding="utf-8") as lines:
                lines.readline()  # the greeting
                yield lines
    finally:
        os.close(descriptor)


def _send(lines: TextIO, command: str) -> None:
    lines.write(json.dumps({"execute": command}) + "\n")
    lines.flush()
