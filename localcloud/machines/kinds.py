"""The kinds of machine: their tools, image and implementation."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localcloud.failure import CloudError
from localcloud.local_cloud import LocalCloud
from localcloud.machines import image, nspawn, qemu, qemu_image, qemu_program
from localcloud.machines.interface import Machines
from localcloud.machines.network import Network
from localcloud.machines.nspawn import NspawnMachines
from localcloud.machines.qemu import QemuMachines
from localcloud.machines.qemu_image import QemuImage

Report = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """One kind of machine.

    ``tools`` are the host's programs that the machines need, ``install`` is the command that
    installs these programs. ``ensure_image`` returns the image's directory and builds the image if
    needed. ``machines`` creates the implementation of Machines. ``mnt_shared`` lists the supported
    values of the setting ``mnt_shared``, the default first.
    """

    tools: tuple[str, ...]
    install: str
    ensure_image: Callable[[Report, str], Path]
    machines: Callable[[LocalCloud, Network, Path, str], Machines]
    mnt_shared: tuple[str, ...]


def _ensure_qemu_image(report: Report, suite: str) -> Path:
    vm_image = qemu_image.ensure(report, suite)
    qemu_program.ensure(vm_image, report)
    return vm_image.root


KINDS = {
    "nspawn": Kind(
        nspawn.TOOLS,
        "make env-localcloud",
        lambda report, suite: image.ensure(report, suite=suite),
        lambda cloud, network, root, mnt_shared: NspawnMachines(
            cloud, network, root, cloud.shared if mnt_shared == "shared" else None
        ),
        ("shared", "local"),
    ),
    "qemu": Kind(
        qemu.TOOLS,
        "requirements/install-system qemu",
        _ensure_qemu_image,
        lambda cloud, network, root, _mnt_shared: QemuMachines(cloud, network, QemuImage(root)),
        ("local",),
    ),
}
DEFAULT = "nspawn"


def check_tools(kind: str) -> None:
    """Raise CloudError if a tool that this kind of machine needs is missing on the host."""
    if missing := [tool for tool in KINDS[kind].tools if not shutil.which(tool)]:
        tools = ", ".join(missing)
        raise CloudError(
            f"machines of kind {kind} need tools that are missing ({tools}). "
            f"Run: {KINDS[kind].install}"
        )
