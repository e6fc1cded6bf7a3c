"""Put a machine by nspawn into trouble from this host, and see what it is in: the kernel knows.

A hang is a frozen control group, a cut a port of the bridge that passes no frame, a full disk a
file beside the machine's own that holds every free block of its disk.
"""

import contextlib
import json
import os
import subprocess
from pathlib import Path

from localcloud.machines.seam import MachineError


def hang(group: Path, on: bool) -> None:
    """Stop every process of a control group where it stands, or let all go on."""
    with contextlib.suppress(FileNotFoundError):
        (group / "cgroup.freeze").write_text("1" if on else "0")


def hangs(group: Path) -> bool:
    """Tell whether the group is stopped, or being stopped (cgroup-v2.rst, "cgroup.freeze")."""
    with contextlib.suppress(FileNotFoundError):
        return (group / "cgroup.freeze").read_text().strip() == "1"
    return False


def cut(link: str, on: bool) -> None:
    """Let a port of a bridge pass nothing, or all; its carrier stays, so its guest sees no event.

    Raises MachineError.
    """
    state = "disabled" if on else "forwarding"
    command = ["bridge", "link", "set", "dev", link, "state", state]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"{' '.join(command)}: {done.stderr.strip()}")


def is_cut(link: str) -> bool:
    """Tell whether a port of a bridge passes nothing (linux/if_bridge.h: BR_STATE_DISABLED)."""
    state = Path(f"/sys/class/net/{link}/brport/state")
    return state.exists() and state.read_text().strip() == "0"


def link_of(supervisor: int) -> str | None:
    """Name this host's end of the link of the machine that a process of nspawn runs."""
    for guest in _children(supervisor):
        told = subprocess.run(
            ["nsenter", f"--target={guest}", "--net", "ip", "-json", "link", "show", "host0"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        for link in json.loads(told.stdout or "[]"):
            for end in Path("/sys/class/net").iterdir():
                if (end / "ifindex").read_text().strip() == str(link.get("link_index")):
                    return end.name
    return None


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # proc_pid_stat(5): the command, in parentheses, may hold spaces; then state and parent.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def fill(disk: Path, ballast: Path) -> None:
    """Take every free block of the file system that is mounted at ``disk``, into one file.

    Blocks are reserved, not written: a sparse disk of this host's stays as small as it was.
    """
    with ballast.open("ab") as file:
        block = os.statvfs(disk).f_frsize
        size = 1 << 40
        at = file.tell()
        while size >= block:
            try:
                os.posix_fallocate(file.fileno(), at, size)
                at += size
            except OSError:
                size //= 2


def free(ballast: Path) -> None:
    """Give the blocks back."""
    ballast.unlink(missing_ok=True)
