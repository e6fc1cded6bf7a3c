"""Ask a running qemu to leave, over its QMP socket (QEMU Machine Protocol, qmp-spec)."""

import json
import os
import socket
from pathlib import Path

SOCKET = "qmp"


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
