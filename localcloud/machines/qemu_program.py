"""Choice of the qemu program: the host's or a newer version, with KVM or with emulation.

When Debian 12's qemu (7.2) emulates a CPU, it sometimes corrupts the guest's CPU flags, and the
guest's kernel crashes at random (docs/decisions/0004).
"""

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from localcloud.failure import CloudError
from localcloud.local_cloud import write_atomically
from localcloud.machines import image
from localcloud.machines.qemu_image import QemuImage

PROGRAM = "qemu-system-x86_64"
KVM, TCG = "kvm", "tcg"
PROBE_DEADLINE_S = 15.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DEVICE = Path("/dev/kvm")
# Test of KVM: if KVM works, a kernel without a root file system prints this text and panics. With
# panic=-1, the kernel then reboots at once, which ends qemu.
_PROOF = "Unable to mount root fs"
# The oldest qemu version whose emulation has not corrupted CPU flags in tests.
OLDEST_SOUND_VERSION = (10, 0)
_PACKAGE = "qemu-system-x86"
_FIRMWARE = ("usr/share/qemu", "usr/share/seabios")
_VERSION = re.compile(r"emulator version (\d+)\.(\d+)")


def ensure(vm_image: QemuImage, report: Callable[[str], None]) -> None:
    """Install a newer qemu beside the image if KVM is not usable and the host's qemu is unreliable.

    ``report`` prints progress. Only a Debian host has package sources for a newer qemu; other hosts
    use their own qemu, and a message is printed. Raises CloudError if the installation fails.
    """
    if choose(vm_image) == KVM:
        return
    report("KVM is not usable on this host: machines are emulated, and a boot takes a minute")
    if is_sound(host_version()):
        return
    suite, lines, options = image.sources()
    if suite != image.DEBIAN_SUITE:
        report("the host's qemu is old, so the kernel of a machine may crash; it then reboots")
    elif not vm_image.qemu.is_dir():
        with image.lock_images(report):
            if not vm_image.qemu.is_dir():
                report("installing a newer qemu than the host's (only at the first start)")
                bootstrap = image.bootstrap("apt", [_PACKAGE], suite, options)
                partial = str(image.partial_of(vm_image.qemu))
                image.make_tree(vm_image.qemu, [*bootstrap, partial, *lines], report)


def command(vm_image: QemuImage) -> list[str]:
    """Return the qemu command for machines of an image, with options for accelerator and CPU."""
    if choose(vm_image) == KVM:
        return [PROGRAM, "-accel", "kvm", "-cpu", "host"]
    emulated = ["-accel", "tcg,thread=multi", "-cpu"]
    if vm_image.qemu.is_dir():
        return [*tree_command(vm_image.qemu), *emulated, "max"]
    # An old qemu corrupts CPU flags less often when it emulates the old CPU model Nehalem. jaxlib
    # does not run on such a machine, because Nehalem has no AVX.
    return [PROGRAM, *emulated, "max" if is_sound(host_version()) else "Nehalem"]


def tree_command(tree: Path) -> list[str]:
    """Return the command that runs the qemu in ``tree`` with the libraries installed there."""
    libraries = tree / "usr/lib/x86_64-linux-gnu"
    firmware = [argument for directory in _FIRMWARE for argument in ("-L", str(tree / directory))]
    return [str(tree / "lib64/ld-linux-x86-64.so.2"), "--library-path", str(libraries),
            str(tree / "usr/bin" / PROGRAM), *firmware]  # fmt: skip


def host_version() -> str:
    """Return the output of the host's ``qemu-system-x86_64 --version``."""
    try:
        result = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CloudError(f"{PROGRAM}: {error}. Run: requirements/install-system qemu") from error
    return result.stdout


def is_sound(version_output: str) -> bool:
    """Return whether a qemu's emulation is reliable, given the output of its ``--version``."""
    version = _VERSION.search(version_output)
    return version is not None and (int(version[1]), int(version[2])) >= OLDEST_SOUND_VERSION


def choose(vm_image: QemuImage) -> str:
    """Return ``kvm`` if KVM can boot the image's kernel, else ``tcg`` (emulation).

    A boot of the kernel is tried, because ``/dev/kvm`` can exist without being usable. The
    result is stored until the host reboots.
    """
    boot_id = _BOOT_ID.read_text().strip()
    with contextlib.suppress(FileNotFoundError, ValueError):
        accelerator, stored_boot_id = vm_image.accelerator.read_text().split()
        if stored_boot_id == boot_id:
            return accelerator
    accelerator = KVM if _kvm_boots(vm_image.kernel) else TCG
    write_atomically(vm_image.accelerator, f"{accelerator} {boot_id}\n")
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
            result = subprocess.run(command, capture_output=True, check=False,
                                  timeout=PROBE_DEADLINE_S)  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        output = console.read_text(errors="replace") if console.exists() else ""
        return result.returncode == 0 and _PROOF in output
