"""Check whether the disk under the local cloud distorts a benchmark.

On an ext4 file system without a journal, the kernel skips all inodes that were deleted in the last
minutes when it creates a file (fs/ext4/ialloc.c, ``recently_deleted``). After many files were
deleted, creating 2,000 files took 5 s of kernel time instead of 0.1 s. A TPU VM's disk has a
journal.
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
    # File systems without a block device, such as overlay, tmpfs and NFS, are not ext4.
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
