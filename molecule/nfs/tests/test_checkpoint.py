"""Two JAX processes on two machines save and restore a checkpoint on the share with Orbax."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

PROJECT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
SITE = "/mnt/shared/site"
# The time limit is long, because importing JAX takes a minute on an emulated machine.
AS_TRAINER = "sudo setpriv --reuid=64042 --regid=64042 --clear-groups timeout 900"


@pytest.fixture(scope="module")
def packages(server, tmp_path_factory) -> str:
    """Install the locked versions of JAX and Orbax on the share, for the Python of the machines."""
    scratch = tmp_path_factory.mktemp("site")
    python = server.check_output("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'")
    subprocess.run(
        ["uv", "pip", "install", "--quiet", "--system-certs", "--target", str(scratch / "site"),
         "--python-version", python, "--python-platform", "x86_64-manylinux_2_28",
         "--only-binary", ":all:", "--constraint", str(PROJECT / "requirements/worker-cpu.lock"),
         "jax", "orbax-checkpoint"],
        check=True,
    )  # fmt: skip
    archive = scratch / "site.tar"
    subprocess.run(["tar", "-cf", archive, "-C", scratch / "site", "."], check=True)
    server.check_output(f"sudo mkdir -p {SITE}")
    program = Path(__file__).with_name("save_and_restore.py")
    for module, source in (("unarchive", archive), ("copy", program)):
        result = server.ansible(
            f"ansible.builtin.{module}", f"src={source} dest={SITE}", check=False, become=True
        )
        assert result["changed"], result
    return SITE


def run_on_both(server, client, verb: str, port: int) -> list[str]:
    """Run save_and_restore.py on server and client; return the last line of each output.

    The process on the NFS server is the JAX coordinator.
    """
    address = server.check_output("ip -4 -br address show dev eth0").split()[2].split("/")[0]

    def one(host, number: int) -> str:
        done = host.run(
            f"{AS_TRAINER} env HOME=/tmp JAX_PLATFORMS=cpu PYTHONDONTWRITEBYTECODE=1 "
            f"PYTHONPATH={SITE} python3 {SITE}/save_and_restore.py {verb} {address}:{port} "
            f"{number} /mnt/shared/checkpoint"
        )
        assert done.succeeded, done.stderr[-2000:]
        return done.stdout.splitlines()[-1]

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, (server, client), (0, 1)))


def test_two_processes_restore_a_checkpoint_that_two_others_saved(server, client, packages):
    assert run_on_both(server, client, "save", 7791) == ["save ok 0", "save ok 1"]
    assert run_on_both(server, client, "restore", 7792) == ["restore ok 0", "restore ok 1"]
    assert server.check_output("stat -c %u /mnt/shared/checkpoint") == "64042"
