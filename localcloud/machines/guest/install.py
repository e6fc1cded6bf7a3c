"""Install the guest programs into a root file system."""

import hashlib
from pathlib import Path

_HERE = Path(__file__).parent
_WANTED_BY = Path("etc/systemd/system/multi-user.target.wants")
# Destination and mode of each guest program and systemd unit. The units have the names that they
# have in Google's guest environment.
FILES = {
    "agent.py": ("usr/libexec/tpufleet-guest/agent.py", 0o755),
    "metadata-script": ("usr/libexec/tpufleet-guest/metadata-script", 0o755),
    "google-guest-agent.service": ("usr/lib/systemd/system/google-guest-agent.service", 0o644),
    "google-startup-scripts.service": (
        "usr/lib/systemd/system/google-startup-scripts.service",
        0o644,
    ),
    "google-shutdown-scripts.service": (
        "usr/lib/systemd/system/google-shutdown-scripts.service",
        0o644,
    ),
}


def digest() -> str:
    """Return a hash of the contents of all guest programs."""
    return hashlib.sha256(b"".join((_HERE / name).read_bytes() for name in FILES)).hexdigest()


def install(root: Path) -> None:
    """Copy the guest programs and their units to the file system ``root``; enable the units."""
    (root / _WANTED_BY).mkdir(parents=True, exist_ok=True)
    for name, (destination, mode) in FILES.items():
        target = root / destination
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((_HERE / name).read_bytes())
        target.chmod(mode)
        link = root / _WANTED_BY / name
        if name.endswith(".service") and not link.is_symlink():
            link.symlink_to(f"/{destination}")
