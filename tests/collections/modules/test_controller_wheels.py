"""Wheels for workers without internet access: the controller downloads and sends them."""

import sys
import tarfile

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import wheels
from ansible_collections.tpufleet.core.plugins.module_utils.worker.python_env import EnvError
from ansible_collections.tpufleet.core.plugins.plugin_utils.setup.controller_wheels import (
    Target,
    requirements_for,
    wheels_archive,
)

from tests.collections.modules.test_wheels import make_wheel

OLD_ARM = Target(minor=9, machine="aarch64", glibc=31)
HERE = Target(minor=sys.version_info.minor, machine="x86_64", glibc=36)


def pip_index(folder):
    """Return variables with which pip takes wheels from a folder and uses no network."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder / "index")}


@pytest.fixture
def index(tmp_path):
    return pip_index(tmp_path)


@pytest.fixture(scope="module")
def apple(tmp_path_factory):
    """A lock file with one wheel, the archive of the wheel, and the controller's cache."""
    folder = tmp_path_factory.mktemp("apple")
    lock = make_wheel(folder / "index", "apple")
    return lock, wheels_archive(lock, HERE, folder / "cache", pip_index(folder)), folder / "cache"


def test_wheels_are_selected_for_the_worker_not_the_controller():
    lock = (
        "# a comment\n"
        "arm==1.0 ; platform_machine == 'aarch64' \\\n    --hash=sha256:a \\\n    --hash=sha256:b\n"
        "intel==1.0 ; platform_machine == 'x86_64' --hash=sha256:c\n"
        "old[extra]==2 ; python_version < '3.10' --hash=sha256:d\n"
    )

    assert requirements_for(OLD_ARM, lock).splitlines() == [
        "arm==1.0 --hash=sha256:a --hash=sha256:b",
        "old[extra]==2 --hash=sha256:d",
    ]


def test_wheels_are_downloaded_for_the_platform_of_the_worker(tmp_path, index):
    name = "pear-1.0-cp39-cp39-manylinux_2_28_aarch64.whl"
    lock = make_wheel(tmp_path / "index", "pear")
    (tmp_path / "index/pear-1.0-py3-none-any.whl").rename(tmp_path / "index" / name)

    pack = wheels_archive(lock, OLD_ARM, tmp_path / "cache", index)

    with tarfile.open(pack) as archive:
        assert archive.getnames() == [name]


def test_the_controller_downloads_each_wheel_once(apple):
    lock, pack, cache = apple

    assert wheels_archive(lock, HERE, cache, {"PIP_NO_INDEX": "1"}) == pack


def test_a_missing_wheel_is_reported_as_a_failure_of_the_controller(tmp_path, index):
    lock = f"no-such-thing==1.0 --hash=sha256:{'0' * 64}\n"

    with pytest.raises(EnvError, match=r"the controller: .*no-such-thing==1\.0") as caught:
        wheels_archive(lock, HERE, tmp_path / "cache", index)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("leader", [False, True], ids=["no leader", "leader without wheels"])
def test_a_worker_without_wheels_from_a_leader_requests_them_from_the_controller(tmp_path, leader):
    with pytest.raises(wheels.WheelsMissingError) as caught:
        wheels.provide_wheels(tmp_path / "wheels/x", "", None, leader=leader, minor=9)

    assert caught.value.needs["minor"] == 9
    assert caught.value.needs["glibc"] >= 17


def test_sent_wheels_are_stored_like_downloaded_ones(tmp_path, apple):
    lock, pack, _ = apple
    folder = wheels.wheels_folder(tmp_path / "worker", lock, 13)

    wheels.provide_wheels(folder, lock, pack, leader=False, minor=13)

    assert [path.name for path in folder.iterdir()] == ["apple-1.0-py3-none-any.whl"]


def test_a_wheel_that_the_lock_file_does_not_pin_is_refused(tmp_path, apple):
    _, pack, _ = apple
    folder = tmp_path / "worker/wheels/x"

    with pytest.raises(
        EnvError, match=r"apple-1\.0-py3-none-any\.whl does not match a hash in the lock file"
    ):
        wheels.provide_wheels(folder, "apple==1.0 --hash=sha256:0", pack, leader=False, minor=13)
    assert not folder.exists()


def test_a_wheel_with_a_path_outside_its_directory_is_refused(tmp_path):
    (tmp_path / "evil").write_text("x")
    with tarfile.open(tmp_path / "pack.tar", "w") as archive:
        archive.add(tmp_path / "evil", "../evil-1.0-py3-none-any.whl")

    with pytest.raises(EnvError, match="is not a wheel"):
        wheels.provide_wheels(
            tmp_path / "wheels/x", "", tmp_path / "pack.tar", leader=False, minor=13
        )
    assert not list(tmp_path.rglob("evil-1.0*"))
