"""The kernel's limit of inotify instances, raised so that many machines can run on this host."""

import contextlib
from pathlib import Path

# The systemd of each machine uses several inotify instances; Linux allows 128 per user by default.
_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
_NEEDED = 2048
_BEFORE = Path("/run/tpufleet-inotify-instances-before")


def raise_for_many_machines() -> None:
    """Raise the limit if it is too low for 32 machines; save its old value."""
    limit = int(_INSTANCES.read_text())
    if limit < _NEEDED:
        _BEFORE.write_text(f"{limit}\n")
        # If this host is itself a container, the limit is read-only and stays as it is.
        with contextlib.suppress(OSError):
            _INSTANCES.write_text(str(_NEEDED))


def restore_after_the_last_cloud() -> None:
    """Restore the saved limit, unless another local cloud is still running on this host."""
    if _BEFORE.exists() and not list(Path("/sys/class/net").glob("tpf*")):
        with contextlib.suppress(OSError):
            _INSTANCES.write_text(_BEFORE.read_text())
        _BEFORE.unlink()
