"""Talk to a running qemu over its QMP socket (QEMU Machine Protocol, qmp-spec)."""

import json
import os
import socket
from pathlib import Path
from typing import Any

SOCKET = "qmp"


def ask(directory: Path, verb: str, patience_s: float) -> dict[str, Any]:
    """Give what the qemu whose socket is in ``directory`` returns to a command.

    Raises OSError if there is none, if it refuses, or does not answer in ``patience_s`` a step.
    """
    where = os.open(directory, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(patience_s)
            connection.connect(f"/proc/self/fd/{where}/{SOCKET}")
            with connection.makefile("rw", encoding="utf-8") as lines:
                lines.readline()  # the greeting
                answer: dict[str, Any] = {}
                for command in ("qmp_capabilities", verb):
                    lines.write(json.dumps({"execute": command}) + "\n")
                    lines.flush()
                    answer = {"event": ""}
                    while "event" in answer:  # events come in between
                        answer = json.loads(lines.readline() or '{"error": "it hung up"}')
        if "return" not in answer:
            raise OSError(f"qemu refuses {verb}: {answer.get('error')}")
        return answer["return"]
    finally:
        os.close(where)


def quit_now(directory: Path, patience_s: float) -> bool:
    """Tell the qemu whose socket is in ``directory`` to quit, and wait until it has hung up.

    To the guest it is a power cut; qemu's own files are closed whole. False if it does not obey
    within ``patience_s`` a step, or there is none.
    """
    try:
        where = os.open(directory, os.O_PATH)
    except OSError:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(patience_s)
            # A socket's own path may have 107 bytes at most, unix(7); a machine's is longer.
            connection.connect(f"/proc/self/fd/{where}/{SOCKET}")
            with connection.makefile("rw", encoding="utf-8") as lines:
                lines.readline()  # the greeting
                for verb in ("qmp_capabilities", "quit"):
                    lines.write(json.dumps({"execute": verb}) + "\n")
                    lines.flush()
                while lines.readline():
                    pass
        return True
    except OSError:
        return False
    finally:
        os.close(where)
