"""The disks of machines, with real mounts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.machines import mounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    try:
        yield mounts.disk(tmp_path / "disk", gib=1)
    finally:
        mounts.unmount_below(tmp_path)


def test_a_machines_disk_has_the_requested_size_and_is_sparse(disk: Path):
    known = os.statvfs(disk)
    assert 0.9 < known.f_blocks * known.f_frsize / 2**30 <= 1.0
    assert disk.with_name("disk.ext4").stat().st_blocks * 512 < 100 << 20


def test_a_machines_disk_uses_direct_io(disk: Path):
    number = disk.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    try:
        os.close(os.open(disk.with_name("disk.ext4"), os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no direct I/O")
    assert (device / "loop/dio").read_text().strip() == "1"


def test_a_mounted_disk_is_reused(disk: Path):
    (disk / "kept").touch()
    assert mounts.disk(disk, gib=1) == disk
    assert (disk / "kept").exists()
