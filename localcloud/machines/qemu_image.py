"""The qemu machines' image: the cached root file system with a kernel, as a disk.

``mke2fs -d`` makes the disk from mmdebstrap's directory, without a mount. A machine's own files are
on a second drive, which is unpacked before its first init.
"""

import hashlib
import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localcloud.failure import CloudError
from localcloud.machines import image

DISK_GIB = 10  # sparse
ROOT_UUID = "6f0c9c1e-7c55-4f0e-9a53-64042c10cd00"
SEED_SERIAL = "seed"
FIRST_INIT = Path("/usr/local/lib/tpufleet-first-init")
# Packages beyond image.PACKAGES, included because apt takes minutes under emulation.
_ALSO = ("initramfs-tools", "e2fsprogs", "python3-apt")
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
# Names of persistent disks as in Google's guest environment.
_DISK_RULES = """\
KERNEL=="sd*", ENV{DEVTYPE}=="disk", ENV{ID_SERIAL_SHORT}=="?*", \
SYMLINK+="disk/by-id/google-$env{ID_SERIAL_SHORT}"
KERNEL=="sd*", ENV{DEVTYPE}=="partition", ENV{ID_SERIAL_SHORT}=="?*", \
SYMLINK+="disk/by-id/google-$env{ID_SERIAL_SHORT}-part%n"
"""


@dataclass(frozen=True)
class QemuImage:
    """The files of one image: its directory, disk and kernel."""

    root: Path

    @property
    def disk(self) -> Path:
        """The raw disk: an ext4 file system without a partition table, named by its recipe."""
        recipe = hashlib.sha256(repr((DISK_GIB, ROOT_UUID, _FIRST_INIT, _DISK_RULES)).encode())
        return self.root.with_name(f"{self.root.name}.{recipe.hexdigest()[:8]}.ext4")

    @property
    def accelerator(self) -> Path:
        """The file that records whether KVM runs this kernel on this host."""
        return self.root.with_name(f"{self.root.name}.accelerator")

    @property
    def qemu(self) -> Path:
        """A Debian tree with a newer qemu; exists if the host's is unsound."""
        return self.root.with_name(f"{self.root.name}.qemu")

    @property
    def kernel(self) -> Path:
        """The newest kernel of the image."""
        return self._newest("vmlinuz-*")

    @property
    def initrd(self) -> Path:
        """The initial RAM file system of that kernel."""
        return self._newest("initrd.img-*")

    def _newest(self, pattern: str) -> Path:
        found = sorted((self.root / "boot").glob(pattern))
        if not found:
            raise CloudError(
                f"{self.root}: no file boot/{pattern}. Remove the image and start the cloud again: "
                f"sudo rm -r {shlex.quote(str(self.root))}"
            )
        return found[-1]


def ensure(say: Callable[[str], None], suite: str = "") -> QemuImage:
    """Return the image; build its missing parts first. Raises CloudError."""
    if os.uname().machine != "x86_64":
        raise CloudError(
            "--machines: machines of kind qemu need an x86_64 host "
            f"({os.uname().machine}). Run the same command without --machines qemu"
        )
    distribution = image.os_release().get("ID", "")
    kernel = _KERNELS.get(distribution, _KERNELS["debian"])
    made = QemuImage(image.ensure(say, (kernel, *_ALSO), suite))
    if not made.disk.exists():
        with image.alone(say):
            if not made.disk.exists():
                say("building the disk of the qemu machines, once")
                _make_disk(made)
    return made


def _make_disk(made: QemuImage) -> None:
    first_init = made.root / str(FIRST_INIT)[1:]
    first_init.write_text(_FIRST_INIT)
    first_init.chmod(0o755)
    (made.root / "etc/udev/rules.d/65-google-disks.rules").write_text(_DISK_RULES)
    (made.root / "etc/fstab").write_text("")
    partial = made.disk.with_name(f"{made.disk.name}.partial-{os.getpid()}")
    command = ["mke2fs", "-q", "-F", "-t", "ext4", "-U", ROOT_UUID, "-d", str(made.root),
               str(partial), f"{DISK_GIB}G"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        partial.unlink(missing_ok=True)
        raise CloudError(f"{made.disk}: mke2fs failed: {done.stderr.strip()}")
    partial.rename(made.disk)
