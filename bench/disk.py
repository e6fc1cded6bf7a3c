"""Whether the disk under the local cloud distorts what a bench measures. Not a bench itself.

An ext4 without a journal avoids inodes that were deleted in the last minute (six, if the disk has
not got that yet) for a new file, and looks at each of them anew for every file that is made
(fs/ext4/ialloc.c, ``recently_deleted``). Who is measured after somebody else's files went pays for
them: here 2,000 files took 5 s of the kernel and not 0.1. A TPU VM's disk has a journal.
"""

import os
import sys
from pathlib import Path


def has_no_journal(directory: Path, root: Path = Path("/")) -> bool:
    """Tell whether a directory lies on an ext4 without a journal; ``root`` holds proc and sys."""
    device = directory.stat().st_dev
    name = root / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    if not name.exists():  # no disk of its own: overlay, tmpfs, a network's
        return False
    disk = name.resolve().name
    journals = (root / "proc/fs/jbd2").glob(f"{disk}-*")
    return (root / "proc/fs/ext4" / disk).exists() and not any(journals)


def warn_of_distortion(*places: Path) -> None:
    """Say which of the directories that a bench writes to make its figures count for nothing."""
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        if has_no_journal(place):
            print(
                f"warning: {place} is on an ext4 without a journal, which makes files slowly after "
                "others were deleted: set TPUFLEET_LOCALCLOUD_DIR and TMPDIR to directories on "
                "another disk",
                file=sys.stderr,
            )
