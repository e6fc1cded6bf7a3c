"""Create a directory for local clouds whose machines boot with setup done, for up to 128 workers.

    python -m bench.ready_image DIRECTORY                                (as root; takes minutes)
    TPUFLEET_LOCALCLOUD_DIR=DIRECTORY python -m bench.launch --workers 128

Setup of 32 bare workers takes seven minutes on two cores; most of that time, it copies the Python
environment to every worker. With this directory, other benchmarks skip these copies. This program
sets one worker up and makes its disk the image of all machines. Benchmarks still run setup.yml on
each machine, because each worker has its own setup stamp, key and list of allowed addresses.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.verbs_cloud import VerbsCloud
from harness.own_cloud import own_cloud
from localcloud.machines import image

MACHINE_SPECIFIC_FILES = (
    "etc/ssh/ssh_host_*",
    "etc/tpufleet/peer/*",
    "opt/tpufleet/ready.json",
    "root/.ssh/*",
    "home/*/.ssh/*",
    "var/lib/tpufleet-peer/.ssh/*",
)


def main() -> int:
    """Set up one worker in a new local cloud, and copy its disk to the given directory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="the directory; created if it is missing")
    directory = parser.parse_args().directory.resolve()
    target = directory / "images" / image.ensure(print).name
    if target.exists():
        raise SystemExit(f"ready_image: {target} exists. Remove it, or use another directory")
    with (
        own_cloud("ready") as cloud,
        tempfile.TemporaryDirectory(prefix="tfb-", ignore_cleanup_errors=True) as scratch,
    ):
        VerbsCloud(cloud.name, Path(scratch)).make("ready", 1)
        (root,) = cloud.machines.glob("*/root")
        copy(root, target)
    print(f"local clouds with TPUFLEET_LOCALCLOUD_DIR={directory} boot machines with setup done")
    return 0


def copy(root: Path, target: Path) -> None:
    """Copy a machine's disk atomically, without files specific to that machine."""
    partial = image.partial_of(target)
    partial.mkdir(parents=True)
    subprocess.run(["cp", "-a", "--one-file-system", f"{root}/.", str(partial)], check=True)
    for pattern in MACHINE_SPECIFIC_FILES:
        for file in partial.glob(pattern):
            file.unlink()
    (partial / "etc/machine-id").write_text("")
    partial.rename(target)


if __name__ == "__main__":
    sys.exit(main())
