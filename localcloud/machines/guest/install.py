"""Install the guest programs into a root file system."""

import hashlib
from pathlib import Path

_HERE = Path(__file__).parent
_UNITS, _PROGRAMS = "usr/lib/systemd/system", "usr/libexec/tpufleet-guest"
_WANTED_BY = Path("etc/systemd/system/multi-user.target.wants")
# The units have the same names as in Google's guest environment.
_FILES = (
    "agent.py",
    "metadata-script",
    "google-guest-agent.service",
    "google-startup-scripts.service",
    "google-shutdown-scripts.service",
)


def digest() -> str:
    """Return a hash of the contents of all guest programs."""
    return hashlib.sha256(b"".join((_HERE / name).read_bytes() for name in _FILES)).hexdigest()


def install(root: Path) -> None:
    """Copy the guest programs and their units to the file system ``root``; enable the units."""
    (root / _WANTED_BY).mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        is_unit = name.endswith(".service")
        destination = f"{_UNITS if is_unit else _PROGRAMS}/{name}"
        target = root / destination
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((_HERE / name).read_bytes())
        target.chmod(0o644 if is_unit else 0o755)
        link = root / _WANTED_BY / name
        if is_unit and not link.is_symlink():
            link.symlink_to(f"/{destination}")
