"""Disk image of the qemu machines: the cached root file system plus a kernel.

``mke2fs -d`` creates the disk from mmdebstrap's directory without mounting it. Each machine's own
files are in a tar on a second drive, which is unpacked at the first boot, before systemd starts.
"""

import hashlib
import os
import platform
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localcloud.failure import CloudError
from localcloud.machines import image

# Size of a machine's disk; the disk's file on the host is sparse and therefore smaller.
DISK_GIB = 10
ROOT_UUID = "6f0c9c1e-7c55-4f0e-9a53-64042c10cd00"
SEED_SERIAL = "seed"
FIRST_INIT = Path("/usr/local/lib/tpufleet-first-init")
# Packages in addition to image.PACKAGES. They are in the image because installing them later would
# take minutes under emulation.
_EXTRA_PACKAGES = ("initramfs-tools", "e2fsprogs", "python3-apt")
_KERNELS = {"debian": "linux-image-cloud-amd64", "ubuntu": "linux-image-virtual"}
_FIRST_INIT = f"""#!/bin/sh
# The machine's own files (name, address, host keys, users) are a tar on the drive "{SEED_SERIAL}".
if [ ! -e /var/lib/tpufleet-seeded ]; then
    for serial in /sys/block/vd*/serial; do
        [ "$(cat "$serial")" = {SEED_SERIAL} ] || continue
        name=${{serial%/serial}}
        tar --extract --numeric-owner --file="/dev/${{name##*/}}" --directory=/ || echo 'no seed'
        : > /var/lib/tpufleet-seeded
    done
fi
exec /sbin/init "$@"
"""
# udev rules that create the same names for persistent disks as Google's guest environment.
_DISK_RULES = """\
KERNEL=="sd*", ENV{DEVTYPE}=="disk", ENV{ID_SERIAL_SHORT}=="?*", \
SYMLINK+="disk/by-id/google-$env{ID_SERIAL_SHORT}"
KERNEL=="sd*", ENV{DEVTYPE}=="partition", ENV{ID_SERIAL_SHORT}=="?*", \
SYMLINK+="disk/by-id/google-$env{ID_SERIAL_SHORT}-part%n"
"""


@dataclass(frozen=True)
class QemuImage:
    """The files of one image; ``root`` is the directory of the cached root file system."""

    root: Path

    @property
    def disk(self) -> Path:
        """The raw disk: an ext4 file system without a partition table.

        Its name contains a hash of its build settings, so that changed settings cause a new build.
        """
        recipe = hashlib.sha256(repr((DISK_GIB, ROOT_UUID, _FIRST_INIT, _DISK_RULES)).encode())
        return self.root.with_name(f"{self.root.name}.{recipe.hexdigest()[:8]}.ext4")

    @property
    def accelerator(self) -> Path:
        """The file that records whether KVM can boot this image's kernel on this host."""
        return self.root.with_name(f"{self.root.name}.accelerator")

    @property
    def qemu(self) -> Path:
        """Path of a Debian file system with a newer qemu, for hosts whose qemu is unreliable."""
        return self.root.with_name(f"{self.root.name}.qemu")

    @property
    def kernel(self) -> Path:
        """Path of the image's newest kernel."""
        return self._newest("vmlinuz-*")

    @property
    def initrd(self) -> Path:
        """Path of the initial RAM file system of ``kernel``."""
        return self._newest("initrd.img-*")

    def _newest(self, pattern: str) -> Path:
        files = sorted((self.root / "boot").glob(pattern))
        if not files:
            raise CloudError(
                f"{self.root}: no file boot/{pattern}. Remove the image and start the cloud again: "
                f"sudo rm -r {shlex.quote(str(self.root))}"
            )
        return files[-1]


def ensure(report: Callable[[str], None], suite: str = "") -> QemuImage:
    """Return the image; build it first if parts of it are missing.

    ``suite`` is the machines' Debian release, ``report`` prints progress. Raises CloudError if this
    is not an x86_64 host or the build fails.
    """
    if os.uname().machine != "x86_64":
        raise CloudError(
            "--machines: machines of kind qemu need an x86_64 host "
            f"({os.uname().machine}). Run the same command without --machines qemu"
        )
    distribution = platform.freedesktop_os_release()["ID"]
    kernel = _KERNELS.get(distribution, _KERNELS["debian"])
    vm_image = QemuImage(image.ensure(report, (kernel, *_EXTRA_PACKAGES), suite))
    if not vm_image.disk.exists():
        with image.lock_images(report):
            if not vm_image.disk.exists():
                report("building the disk of the qemu machines (only at the first start)")
                _make_disk(vm_image)
    return vm_image


def _make_disk(vm_image: QemuImage) -> None:
    first_init = vm_image.root / str(FIRST_INIT)[1:]
    first_init.write_text(_FIRST_INIT)
    first_init.chmod(0o755)
    (vm_image.root / "etc/udev/rules.d/65-google-disks.rules").write_text(_DISK_RULES)
    (vm_image.root / "etc/fstab").write_text("")
    partial = vm_image.disk.with_name(f"{vm_image.disk.name}.partial-{os.getpid()}")
    command = ["mke2fs", "-q", "-F", "-t", "ext4", "-U", ROOT_UUID, "-d", str(vm_image.root),
               str(partial), f"{DISK_GIB}G"]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        partial.unlink(missing_ok=True)
        raise CloudError(f"{vm_image.disk}: mke2fs failed: {result.stderr.strip()}")
    partial.rename(vm_image.disk)
