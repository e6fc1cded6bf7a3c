"""Inject faults into a machine from the host, and read them back from the kernel.

A hang is a frozen control group, a cut is a disabled port of the bridge, a full disk is a file
that reserves every free block of the machine's disk.
"""

import contextlib
import json
import os
import subprocess
from pathlib import Path

from localcloud.machines.interface import MachineError


def hang(group: Path, on: bool) -> None:
    """Freeze every process of a control group, or let them continue."""
    with contextlib.suppress(FileNotFoundError):
        (group / "cgroup.freeze").write_text("1" if on else "0")


def hangs(group: Path) -> bool:
    """Return whether the group is frozen or freezing (cgroup-v2.rst, "cgroup.freeze")."""
    with contextlib.suppress(FileNotFoundError):
        return (group / "cgroup.freeze").read_text().strip() == "1"
    return False


def cut(link: str, on: bool) -> None:
    """Disable or enable a port of a bridge; its carrier stays up, so the guest sees no event.

    Raises MachineError.
    """
    state = "disabled" if on else "forwarding"
    command = ["bridge", "link", "set", "dev", link, "state", state]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"{' '.join(command)}: {done.stderr.strip()}")


def is_cut(link: str) -> bool:
    """Return whether a port of a bridge is disabled (linux/if_bridge.h: BR_STATE_DISABLED)."""
    state = Path(f"/sys/class/net/{link}/brport/state")
    return state.exists() and state.read_text().strip() == "0"


def link_of(supervisor: int) -> str | None:
    """Return the host's end of the link of the machine that an nspawn process runs."""
    for guest in _children(supervisor):
        done = subprocess.run(
            ["nsenter", f"--target={guest}", "--net", "ip", "-json", "link", "show", "host0"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        for link in json.loads(done.stdout or "[]"):
            for end in Path("/sys/class/net").iterdir():
                if (end / "ifindex").read_text().strip() == str(link.get("link_index")):
                    return end.name
    return None


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # proc_pid_stat(5): the command in parentheses may have spaces; then state and parent.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def fill(disk: Path, ballast: Path) -> None:
    """Reserve every free block of the file system mounted at ``disk`` for one file.

    Blocks are reserved, not written, so that a sparse disk stays small on the host.
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
    """Release the blocks."""
    ballast.unlink(missing_ok=True)
