"""Kernel limits that many machines on one host need; restored after the last cloud."""

import contextlib
from pathlib import Path

# Every booted systemd uses a few inotify instances; Linux allows 128 per user.
_LIMITS = {Path("/proc/sys/fs/inotify/max_user_instances"): 2048}
_BEFORE = Path("/run/tpufleet-kernel-limits-before")


def raise_for_many_machines() -> None:
    """Raise the limits that are too low for 32 machines; record their old values."""
    lower = {p: int(p.read_text()) for p, want in _LIMITS.items() if int(p.read_text()) < want}
    if lower and not _BEFORE.exists():
        _BEFORE.write_text("".join(f"{path} {value}\n" for path, value in lower.items()))
    for path in lower:
        with contextlib.suppress(OSError):  # read-only where this host is itself a container
            path.write_text(str(_LIMITS[path]))


def restore_after_the_last_cloud() -> None:
    """Restore the limits if no cloud's bridge is left on this host."""
    if _BEFORE.exists() and not list(Path("/sys/class/net").glob("tpf*")):
        for line in _BEFORE.read_text().splitlines():
            path, _, value = line.partition(" ")
            with contextlib.suppress(OSError):
                Path(path).write_text(value)
        _BEFORE.unlink()
