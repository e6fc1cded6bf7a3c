"""Check whether the disk under the local cloud distorts a benchmark.

An ext4 file system without a journal creates files slowly after many files were deleted: to find a
free inode, the kernel skips all inodes that were deleted in the last minutes (fs/ext4/ialloc.c,
``recently_deleted``). Creating 2,000 files then took 5 s of kernel time instead of 0.1 s. TPU VMs
do not have this problem, because their disks have a journal.
"""

import os
import sys
from pathlib import Path


def has_no_journal(directory: Path, root: Path = Path("/")) -> bool:
    """Return whether a directory is on an ext4 file system without a journal.

    ``root`` is the directory that contains proc and sys: / except in tests.
    """
    device = directory.stat().st_dev
    name = root / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    # ext4 is always on a block device. Overlay, tmpfs and NFS, for example, have none.
    if not name.exists():
        return False
    disk = name.resolve().name
    journals = (root / "proc/fs/jbd2").glob(f"{disk}-*")
    return (root / "proc/fs/ext4" / disk).exists() and not any(journals)


def warn_of_distortion(*directories: Path) -> None:
    """Create the directories; print a warning for each that is on ext4 without a journal."""
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
        if has_no_journal(directory):
            print(
                f"warning: {directory} is on an ext4 without a journal, which creates files slowly "
                "after deletions. Set TPUFLEET_LOCALCLOUD_DIR and TMPDIR to directories on another "
                "disk",
                file=sys.stderr,
            )
