"""Which qemu runs the machines: the host's own, or a newer one kept beside the images.

Emulation by the qemu of Debian 12 (7.2) corrupts a guest's flags now and then, so that its kernel
dies at random (docs/decisions/0004).
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from localcloud.failure import CloudError
from localcloud.machines import image
from localcloud.machines.qemu_accelerator import KVM, choose
from localcloud.machines.qemu_image import QemuImage

PROGRAM = "qemu-system-x86_64"
SOUND = (10, 0)  # the oldest whose emulation was seen to be without that fault
_PACKAGE = "qemu-system-x86"
_FIRMWARE = ("usr/share/qemu", "usr/share/seabios")
_VERSION = re.compile(r"emulator version (\d+)\.(\d+)")


def ensure(made: QemuImage, say: Callable[[str], None]) -> None:
    """Make the newer qemu where the host's own is not sound for what it must do. Raises CloudError.

    Only a Debian host has package sources for one; elsewhere the host's own has to do.
    """
    if choose(made) == KVM:
        return
    say("KVM does not run a machine on this host: they are emulated, a boot takes a minute")
    if is_sound(host_s_version()):
        return
    suite, lines, options = image.sources()
    if suite != image.DEBIAN_SUITE:
        say("the host's qemu is an old one: an emulated kernel may fail, and then boots anew")
    elif not made.qemu.is_dir():
        with image.alone(say):
            if not made.qemu.is_dir():
                say("fetching a newer qemu than the host's own, once")
                bootstrap = image.bootstrap("apt", [_PACKAGE], suite, options)
                partial = str(image.partial_of(made.qemu))
                image.make_tree(made.qemu, [*bootstrap, partial, *lines], say)


def command(made: QemuImage) -> list[str]:
    """Give the command that runs a machine, with its accelerator and processor."""
    if choose(made) == KVM:
        return [PROGRAM, "-accel", "kvm", "-cpu", "host"]
    emulated = ["-accel", "tcg,thread=multi", "-cpu"]
    if made.qemu.is_dir():
        return [*of_tree(made.qemu), *emulated, "max"]
    # Of an old qemu, the flags of newer processors come out wrong far more often than this one's;
    # without AVX, jaxlib does not run there.
    return [PROGRAM, *emulated, "max" if is_sound(host_s_version()) else "Nehalem"]


def of_tree(tree: Path) -> list[str]:
    """Run the qemu of a whole Debian tree, by its own loader with its own libraries."""
    libraries = tree / "usr/lib/x86_64-linux-gnu"
    firmware = [word for part in _FIRMWARE for word in ("-L", str(tree / part))]
    return [str(tree / "lib64/ld-linux-x86-64.so.2"), "--library-path", str(libraries),
            str(tree / "usr/bin" / PROGRAM), *firmware]  # fmt: skip


def host_s_version() -> str:
    """Ask the host's qemu for its version, as it says it."""
    try:
        done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CloudError(f"{PROGRAM}: {error}. Run: requirements/install-system qemu") from error
    return done.stdout


def is_sound(told: str) -> bool:
    """Tell whether the emulation of a qemu is to be trusted, by what its ``--version`` prints."""
    found = _VERSION.search(told)
    return found is not None and (int(found[1]), int(found[2])) >= SOUND
