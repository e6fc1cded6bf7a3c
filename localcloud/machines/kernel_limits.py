"""Kernel limits that are raised so that many machines can run on this host."""

import contextlib
from pathlib import Path

# The systemd of each machine uses several inotify instances; Linux allows 128 per user by default.
_LIMITS = {Path("/proc/sys/fs/inotify/max_user_instances"): 2048}
_BEFORE = Path("/run/tpufleet-kernel-limits-before")


def raise_for_many_machines() -> None:
    """Raise the limits that are too low for 32 machines; save their old values."""
    lower = {p: int(p.read_text()) for p, limit in _LIMITS.items() if int(p.read_text()) < limit}
    if lower and not _BEFORE.exists():
        _BEFORE.write_text("".join(f"{path} {value}\n" for path, value in lower.items()))
    for path in lower:
        # Skip a limit that is read-only, because this host is itself a container.
        with contextlib.suppress(OSError):
            path.write_text(str(_LIMITS[path]))


def restore_after_the_last_cloud() -> None:
    """Restore the saved limits, unless another local cloud is still running on this host."""
    if _BEFORE.exists() and not list(Path("/sys/class/net").glob("tpf*")):
        for line in _BEFORE.read_text().splitlines():
            path, _, value = line.partition(" ")
            with contextlib.suppress(OSError):
                Path(path).write_text(value)
        _BEFORE.unlink()
