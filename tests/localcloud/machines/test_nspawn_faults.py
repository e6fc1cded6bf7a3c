"""The faults of an nspawn machine that powers off while they are read."""

import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from localcloud.local_cloud import LocalCloud
from localcloud.machines import control_groups, machine_faults
from localcloud.machines.network import Network
from localcloud.machines.nspawn import NspawnMachines


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NspawnMachines:
    """The machines of a cloud in a new directory."""
    groups = tmp_path / "cgroup"
    groups.mkdir()
    monkeypatch.setattr(control_groups, "hierarchy", lambda: groups)
    cloud = LocalCloud("default", tmp_path / "cloud")
    return NspawnMachines(cloud, Network(cloud, IPv4Network("198.18.0.0/22")), tmp_path, None)


@pytest.fixture
def supervisor(machines: NspawnMachines) -> Iterator[None]:
    """A process with the command line of the supervisor of machine w0, but without a guest."""
    wait = [sys.executable, "-c", "input()", machines._root_option("w0")]
    with subprocess.Popen(wait, stdin=subprocess.PIPE) as process:
        yield
        process.kill()


@pytest.mark.usefixtures("supervisor")
def test_a_machine_whose_guest_has_ended_has_no_faults(machines):
    assert machines.alive("w0")
    assert machines.faults("w0") == ()


def test_files_that_disappear_while_they_are_read_mean_no_fault(tmp_path, monkeypatch):
    def disappear(path: Path, **_) -> str:
        raise OSError(19, "No such device", str(path))

    monkeypatch.setattr(Path, "exists", lambda _: True)
    monkeypatch.setattr(Path, "read_text", disappear)

    assert not machine_faults.hangs(tmp_path)
    assert not machine_faults.is_cut("vb-w0")
