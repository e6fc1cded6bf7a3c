"""Whether KVM really runs a guest here: its device may be there and serve no ordinary kernel."""

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

from localcloud.machines.qemu_image import QemuImage

KVM, TCG = "kvm", "tcg"
PROBE_DEADLINE_S = 15.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DEVICE = Path("/dev/kvm")
# Without a root file system a kernel that runs panics, and leaves at once for panic=-1.
_PROOF = "Unable to mount root fs"


def choose(image: QemuImage) -> str:
    """Give ``kvm`` where it boots the image's kernel, else ``tcg``; tried once a host's boot."""
    boot = _BOOT_ID.read_text().strip()
    with contextlib.suppress(FileNotFoundError, ValueError):
        accelerator, when = image.accelerator.read_text().split()
        if when == boot:
            return accelerator
    accelerator = KVM if _kvm_boots(image.kernel) else TCG
    partial = image.accelerator.with_name(f"{image.accelerator.name}.partial-{os.getpid()}")
    partial.write_text(f"{accelerator} {boot}\n")
    partial.rename(image.accelerator)
    return accelerator


def _kvm_boots(kernel: Path) -> bool:
    if not _DEVICE.exists():
        return False
    with tempfile.TemporaryDirectory(prefix="tpufleet-kvm-") as directory:
        console = Path(directory) / "console"
        command = ["qemu-system-x86_64", "-accel", "kvm", "-cpu", "host", "-m", "256",
                   "-nodefaults", "-display", "none", "-no-reboot", "-serial", f"file:{console}",
                   "-kernel", str(kernel), "-append", "console=ttyS0 panic=-1"]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, check=False,
                                  timeout=PROBE_DEADLINE_S)  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        said = console.read_text(errors="replace") if console.exists() else ""
        return done.returncode == 0 and _PROOF in said
