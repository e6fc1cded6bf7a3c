"""The file of a data disk grows when the disk is enlarged, and keeps its content."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from localcloud.machines import qemu

pytestmark = pytest.mark.skipif(
    not shutil.which("qemu-img"), reason="qemu-img is missing: requirements/install-system qemu"
)


def size(file: Path) -> int:
    reply = subprocess.run(["qemu-img", "info", "--output=json", file], capture_output=True,
                          check=True)  # fmt: skip
    return json.loads(reply.stdout)["virtual-size"]


def test_a_resized_disk_grows_at_the_next_boot_and_never_shrinks(tmp_path: Path):
    file = tmp_path / "corpus.qcow2"
    qemu._make_disk(file, gib=10)
    qemu.grow(file, 12)
    assert size(file) == 12 << 30
    qemu.grow(file, 10)
    assert size(file) == 12 << 30
