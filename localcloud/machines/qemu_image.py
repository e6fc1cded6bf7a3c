"""What every qemu machine starts from: the cached root file system with a kernel, as a disk.

The disk is made by ``mke2fs -d`` from the directory that mmdebstrap made, so nothing is mounted
for it; a machine's own files come to it on a second drive, unpacked before its first init.
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

DISK_GIB = 10  # sparse: it takes what is written to it
ROOT_UUID = "6f0c9c1e-7c55-4f0e-9a53-64042c10cd00"
SEED_SERIAL = "seed"
FIRST_INIT = Path("/usr/local/lib/tpufleet-first-init")
# An initrd, and what an image of a TPU VM has: under emulation apt takes minutes to bring it.
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
# As Google's guest environment names a TPU VM's persistent disks.
_DISK_RULES = """\
KERNEL=="sd*", ENV{DEVTYPE}=="disk", ENV{ID_SERIAL_SHORT}=="?*", \
SYMLINK+="disk/by-id/google-$env{ID_SERIAL_SHORT}"
KERNEL=="sd*", ENV{DEVTYPE}=="partition", ENV{ID_SERIAL_SHORT}=="?*", \
SYMLINK+="disk/by-id/google-$env{ID_SERIAL_SHORT}-part%n"
"""


@dataclass(frozen=True)
class QemuImage:
    """The files of one image: the directory it was made from, its disk, its kernel."""

    root: Path

    @property
    def disk(self) -> Path:
        """The raw disk, an ext4 file system without a partition table, named by what it adds."""
        recipe = hashlib.sha256(repr((DISK_GIB, ROOT_UUID, _FIRST_INIT, _DISK_RULES)).encode())
        return self.root.with_name(f"{self.root.name}.{recipe.hexdigest()[:8]}.ext4")

    @property
    def accelerator(self) -> Path:
        """Where the host's answer is remembered to whether KVM runs this kernel."""
        return self.root.with_name(f"{self.root.name}.accelerator")

    @property
    def qemu(self) -> Path:
        """A Debian tree with a newer qemu than the host's own, where that one is not sound."""
        return self.root.with_name(f"{self.root.name}.qemu")

    @property
    def kernel(self) -> Path:
        """The newest kernel of the image."""
        return self._newest("vmlinuz-*")

    @property
    def initrd(self) -> Path:
        """The first file system of that kernel."""
        return self._newest("initrd.img-*")

    def _newest(self, pattern: str) -> Path:
        found = sorted((self.root / "boot").glob(pattern))
        if not found:
            raise CloudError(
                f"{self.root} has no boot/{pattern}. Remove this image, and up makes it again: "
                f"sudo rm -r {shlex.quote(str(self.root))}"
            )
        return found[-1]


def ensure(say: Callable[[str], None], suite: str = "") -> QemuImage:
    """Give the image, making first what is missing of it. Raises CloudError."""
    if os.uname().machine != "x86_64":
        raise CloudError(
            "--machines: only x86_64 hosts have machines of kind qemu, and this one is "
            f"{os.uname().machine}. Run the same command without --machines qemu"
        )
    distribution = image.os_release().get("ID", "")
    kernel = _KERNELS.get(distribution, _KERNELS["debian"])
    made = QemuImage(image.ensure(say, (kernel, *_ALSO), suite))
    if not made.disk.exists():
        with image.alone(say):
            if not made.disk.exists():
                say("making the disk of the machines with a kernel of their own, once")
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
        raise CloudError(f"making the machines' disk failed: {done.stderr.strip()}")
    partial.rename(made.disk)
