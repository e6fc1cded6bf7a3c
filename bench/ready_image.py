"""Make a place for local clouds whose machines come up set up, so that 128 of them can be had.

    python bench/ready_image.py DIRECTORY                                (as root; takes minutes)
    TPUFLEET_LOCALCLOUD_DIR=DIRECTORY python bench/launch.py --workers 128

Setup of 32 bare workers takes two cores seven minutes, most of it their copies of one environment.
The daily verbs don't ask how a worker became ready: so one worker is set up here as ever, and what
its disk holds becomes the image of the others. Setup still runs on each of them, and mends what is
a worker's own: its setup stamp, its key, and the addresses that it accepts.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT))

from bench.verbs_cloud import VerbsCloud  # noqa: E402
from localcloud import cloud as clouds  # noqa: E402
from localcloud.machines import image  # noqa: E402
from localcloud.place import Place  # noqa: E402

OF_ONE_MACHINE = (
    "etc/ssh/ssh_host_*",
    "etc/tpufleet/peer/*",
    "opt/tpufleet/ready.json",
    "root/.ssh/*",
    "home/*/.ssh/*",
    "var/lib/tpufleet-peer/.ssh/*",
)


def main() -> int:
    """Set one worker up in a cloud of its own, and copy its disk."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="where it is to be; made if it is not there")
    directory = parser.parse_args().directory.resolve()
    name = f"ready-{os.getpid()}"
    place = Place.of(name)
    with tempfile.TemporaryDirectory(prefix="tfb-", ignore_cleanup_errors=True) as scratch:
        maker = VerbsCloud(name, Path(scratch))
        bare = image.ensure(print)
        to = directory / "images" / bare.name
        if to.exists():
            raise SystemExit(
                f"ready_image: {to} is there already: remove it, or name another place"
            )
        try:
            clouds.up(place, port=None, subnet=None, say=print)
            maker.make("ready", 1)
            (root,) = place.machines.glob("*/root")
            copy(root, to)
        finally:
            clouds.down(place, say=print)
    print(f"machines of local clouds with TPUFLEET_LOCALCLOUD_DIR={directory} come up set up")
    return 0


def copy(root: Path, to: Path) -> None:
    """Copy a machine's disk, but for what is that machine's alone; whole or not at all."""
    partial = image.partial_of(to)
    partial.mkdir(parents=True)
    subprocess.run(["cp", "-a", "--one-file-system", f"{root}/.", str(partial)], check=True)
    for pattern in OF_ONE_MACHINE:
        for file in partial.glob(pattern):
            file.unlink()
    (partial / "etc/machine-id").write_text("")
    partial.rename(to)


if __name__ == "__main__":
    sys.exit(main())
