"""Faults of machines, injected from the host; their state is read back from the kernel.

The fault "hang" freezes the machine's control group, "cut" disables its port of the bridge, and
"full-disk" creates a file that reserves all free blocks of its disk.
"""

import contextlib
import json
import os
from pathlib import Path

from localcloud.machines.commands import attempt, run


def hang(group: Path, on: bool) -> None:
    """Freeze all processes of a control group (``on``) or resume them."""
    with contextlib.suppress(FileNotFoundError):
        (group / "cgroup.freeze").write_text("1" if on else "0")


def hangs(group: Path) -> bool:
    """Return whether ``hang`` has frozen the control group (cgroup-v2.rst, "cgroup.freeze").

    A group that does not exist, or is removed meanwhile, is not frozen.
    """
    with contextlib.suppress(OSError):
        return (group / "cgroup.freeze").read_text().strip() == "1"
    return False


def cut(link: str, on: bool) -> None:
    """Disable (``on``) or enable the bridge port ``link``.

    The link's carrier stays up, so the guest is not notified. Raises MachineError.
    """
    state = "disabled" if on else "forwarding"
    run("bridge", "link", "set", "dev", link, "state", state)


def is_cut(link: str) -> bool:
    """Return whether bridge port ``link`` is disabled (BR_STATE_DISABLED in linux/if_bridge.h).

    A port that does not exist, or is removed meanwhile, is not disabled.
    """
    with contextlib.suppress(OSError):
        return Path(f"/sys/class/net/{link}/brport/state").read_text().strip() == "0"
    return False


def link_of(supervisor: int) -> str | None:
    """Return the name of the host's end of a machine's network link, or None.

    ``supervisor`` is the pid of the machine's systemd-nspawn process.
    """
    for guest in _children(supervisor):
        enter = ("nsenter", f"--target={guest}", "--net")
        links = attempt(*enter, "ip", "-json", "link", "show", "host0")
        for link in json.loads(links or "[]"):
            for end in Path("/sys/class/net").iterdir():
                with contextlib.suppress(OSError):  # the link of another machine was deleted
                    if (end / "ifindex").read_text().strip() == str(link.get("link_index")):
                        return end.name
    return None


def _children(parent: int) -> list[int]:
    children = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # Parse only the fields after the command name, because the name may contain spaces and
            # parentheses. These fields begin with state and parent's pid (proc_pid_stat(5)).
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                children.append(int(entry.name))
    return children


def fill(disk: Path, ballast: Path) -> None:
    """Fill the file system mounted at ``disk`` by growing the file ``ballast``.

    The file's blocks are allocated but not written, so that a sparse disk stays small on the host.
    """
    with ballast.open("ab") as file:
        block = os.statvfs(disk).f_frsize
        size = 1 << 40
        offset = file.tell()
        while size >= block:
            try:
                os.posix_fallocate(file.fileno(), offset, size)
                offset += size
            except OSError:
                size //= 2
