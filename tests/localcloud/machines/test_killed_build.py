"""A killed build of an image, with real processes and mounts, leaves only a directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localcloud.machines import image, mounts, processes
from tests.localcloud.api.local_api import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
BUILDER = """
import subprocess, sys
from localcloud.machines import image
subprocess.run([*image.KILL_WITH_PARENT, "sh", "-c", sys.argv[1], sys.argv[2]])
"""


def test_a_killed_build_leaves_no_process_and_no_mount(tmp_path: Path):
    tree = tmp_path / "trixie-0123456789ab.partial-7"
    (tree / "proc").mkdir(parents=True)
    work = f"mount -t tmpfs mine {tree}/proc && touch {tree}/mounted; sleep 1000 & wait"
    builder = subprocess.Popen([sys.executable, "-c", BUILDER, work, str(tree)])
    try:
        wait_for((tree / "mounted").exists)
        assert processes.with_argument(str(tree))
        assert mounts.below(tree) == []  # the builder's mounts are in its private namespace
    finally:
        builder.kill()
        builder.wait()
    wait_for(lambda: not processes.with_argument(str(tree)))
    image._remove(tree)
    assert not tree.exists()
