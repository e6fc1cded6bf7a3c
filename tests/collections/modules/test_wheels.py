"""Download of the wheels that a lock file pins, and unpacking of the programs in them."""

import subprocess
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

from tests.collections.package_index import make_wheel

APPLE = "apple-1.0-py3-none-any.whl"
OLD_ARM = Target(minor=9, machine="aarch64", glibc=31)
HERE = Target(minor=sys.version_info.minor, machine="x86_64", glibc=36)
NO_INDEX = {"PIP_NO_INDEX": "1"}


@pytest.fixture(scope="module")
def apple(tmp_path_factory):
    """The text of a lock file, the archive of its only wheel, and the cache on the controller."""
    folder = tmp_path_factory.mktemp("apple")
    lock = make_wheel(folder / "index", "apple")
    index = NO_INDEX | {"PIP_FIND_LINKS": str(folder / "index")}
    return lock, wheels_archive(lock, HERE, folder / "cache", index), folder / "cache"


@pytest.fixture
def pip(apple):
    """The command that runs the controller's pip, which ``apple`` has installed in its cache."""
    [program] = apple[2].glob("pip-*/bin/pip")
    return [str(program)]


@pytest.fixture
def index(tmp_path):
    """Environment variables that let pip take wheels only from ``tmp_path``/index."""
    return NO_INDEX | {"PIP_FIND_LINKS": str(tmp_path / "index")}


def test_a_wheel_with_another_digest_is_refused_and_not_stored(tmp_path, pip, index):
    lock = make_wheel(tmp_path / "index", "apple")
    make_wheel(tmp_path / "index", "apple", body="evil = True")
    folder = wheels.wheels_folder(tmp_path, lock, 13)

    with pytest.raises(EnvError, match=r"downloading .* apple|DO NOT MATCH|Expected sha256"):
        wheels.download(folder, lock, pip, index)
    assert not folder.exists()


def test_complete_wheels_of_an_interrupted_download_are_used(tmp_path, pip):
    lock = make_wheel(tmp_path / "index", "apple")
    folder = wheels.wheels_folder(tmp_path, lock, 13)
    partial = folder.with_name(f".{folder.name}.new")
    partial.parent.mkdir(parents=True)
    (tmp_path / "index").rename(partial)
    (partial / "torn-1.0-py3-none-any.whl").write_text("half")

    wheels.download(folder, lock, pip, NO_INDEX)

    assert [path.name for path in folder.glob("*.whl")] == [APPLE]


def test_a_wheel_that_another_lock_file_pins_too_is_not_downloaded_again(tmp_path, pip, index):
    apple = make_wheel(tmp_path / "index", "apple")
    wheels.download(wheels.wheels_folder(tmp_path, apple, 13), apple, pip, index)
    (tmp_path / "index" / APPLE).unlink()
    both = apple + make_wheel(tmp_path / "index", "pear")
    folder = wheels.wheels_folder(tmp_path, both, 13)

    wheels.download(folder, both, pip, index)

    names = sorted(path.name for path in folder.glob("*.whl"))
    assert names == [APPLE, "pear-1.0-py3-none-any.whl"]


def test_a_program_is_unpacked_from_its_wheel(tmp_path):
    lock = make_wheel(tmp_path / "wheels", "peeler", program="#!/bin/sh\necho peeled\n")

    wheels.unpack_programs(tmp_path / "wheels", lock, tmp_path / "bin")

    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["peeler"]
    result = subprocess.run([tmp_path / "bin/peeler"], capture_output=True, text=True, check=True)
    assert result.stdout == "peeled\n"


def test_wheels_with_another_content_are_removed_so_that_setup_downloads_them_again(tmp_path):
    lock = make_wheel(tmp_path / "wheels", "peeler", program="#!/bin/sh\necho peeled\n")
    make_wheel(tmp_path / "wheels", "peeler", program="#!/bin/sh\necho evil\n")

    with pytest.raises(EnvError, match=r"peeler-1\.0\S* did not match a hash in the lock file"):
        wheels.unpack_programs(tmp_path / "wheels", lock, tmp_path / "bin")
    assert list((tmp_path / "bin").iterdir()) == []
    assert not (tmp_path / "wheels").exists()


def test_an_index_that_is_set_for_uv_is_also_used_by_pip():
    variables = wheels.pip_environment({"UV_INDEX_URL": "http://127.0.0.1:9/simple"})

    assert variables["PIP_INDEX_URL"] == "http://127.0.0.1:9/simple"


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


def test_wheels_are_downloaded_for_the_platform_of_the_worker(tmp_path, index, apple):
    _, _, cache = apple
    name = "pear-1.0-cp39-cp39-manylinux_2_28_aarch64.whl"
    lock = make_wheel(tmp_path / "index", "pear")
    (tmp_path / "index/pear-1.0-py3-none-any.whl").rename(tmp_path / "index" / name)

    pack = wheels_archive(lock, OLD_ARM, cache, index)

    with tarfile.open(pack) as archive:
        assert archive.getnames() == [name]


def test_the_controller_downloads_each_wheel_once(apple):
    lock, pack, cache = apple

    assert wheels_archive(lock, HERE, cache, NO_INDEX) == pack


def test_a_missing_wheel_is_a_failure_of_the_controller_in_one_line_with_the_fix(index, apple):
    _, _, cache = apple
    lock = f"no-such-thing==1.0 --hash=sha256:{'0' * 64}\n"

    error = r"the controller: no index has a wheel of no-such-thing==1\.0 .* Lock with uv pip comp"
    with pytest.raises(EnvError, match=error) as caught:
        wheels_archive(lock, HERE, cache, index)
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

    assert [path.name for path in folder.iterdir()] == [APPLE]


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
