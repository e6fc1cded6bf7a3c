"""Wheels that a lock file pins: how they are downloaded, and how programs are unpacked from them.

Also which old Python environments are removed from a worker.
"""

import hashlib
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import python_env, wheels
from ansible_collections.tpufleet.core.plugins.module_utils.worker.python_env import EnvError
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.modules import python_env as env_module
from ansible_collections.tpufleet.core.plugins.modules.python_env import remove_unused_files

ENV_A, ENV_B, ENV_C, ENV_D = (letter * 16 for letter in "abcd")


def make_wheel(folder: Path, name: str, body: str = "") -> str:
    """Create a wheel with one module; return its line for a lock file."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", body)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", wheel)
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{name}==1.0 --hash=sha256:{digest}\n"


@pytest.fixture(scope="module")
def pip(tmp_path_factory):
    home = tmp_path_factory.mktemp("pip")
    venv.create(home, with_pip=True)
    return [str(home / "bin/pip")]


@pytest.fixture
def index(tmp_path):
    """Variables with which pip takes wheels from a folder and uses no network."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index")}


def test_all_pinned_wheels_are_downloaded(tmp_path, pip, index):
    lock = make_wheel(tmp_path / "index", "apple") + make_wheel(tmp_path / "index", "pear")
    folder = wheels.wheels_folder(tmp_path, lock, sys.version_info.minor)

    wheels.download(folder, lock, pip, index)

    assert sorted(path.name for path in folder.glob("*.whl")) == [
        "apple-1.0-py3-none-any.whl",
        "pear-1.0-py3-none-any.whl",
    ]


def test_a_wheel_with_another_digest_is_refused_and_not_stored(tmp_path, pip, index):
    lock = make_wheel(tmp_path / "index", "apple")
    make_wheel(tmp_path / "index", "apple", "evil = True")
    folder = wheels.wheels_folder(tmp_path, lock, 13)

    with pytest.raises(EnvError, match=r"downloading .* apple|DO NOT MATCH|Expected sha256"):
        wheels.download(folder, lock, pip, index)
    assert not folder.exists()


def test_a_requirement_without_a_wheel_is_one_line_with_the_fix(tmp_path, pip, index):
    lock = f"no-such-thing==1.0 --hash=sha256:{'0' * 64}\n"

    error = r"has a wheel of no-such-thing==1\.0 for this Python\. Lock with uv pip compile"
    with pytest.raises(EnvError, match=error) as caught:
        wheels.download(wheels.wheels_folder(tmp_path, lock, 13), lock, pip, index)
    assert "\n" not in str(caught.value)


def test_complete_wheels_of_an_interrupted_download_are_used(tmp_path, pip):
    lock = make_wheel(tmp_path / "index", "apple")
    folder = wheels.wheels_folder(tmp_path, lock, 13)
    partial = folder.with_name(f".{folder.name}.new")
    partial.parent.mkdir(parents=True)
    (tmp_path / "index").rename(partial)
    (partial / "torn-1.0-py3-none-any.whl").write_text("half")
    nowhere = {"PIP_NO_INDEX": "1"}

    wheels.download(folder, lock, pip, nowhere)

    assert [path.name for path in folder.glob("*.whl")] == ["apple-1.0-py3-none-any.whl"]


def test_a_wheel_that_another_lock_file_pins_too_is_not_downloaded_again(tmp_path, pip, index):
    apple = make_wheel(tmp_path / "index", "apple")
    wheels.download(wheels.wheels_folder(tmp_path, apple, 13), apple, pip, index)
    (tmp_path / "index/apple-1.0-py3-none-any.whl").unlink()
    both = apple + make_wheel(tmp_path / "index", "pear")
    folder = wheels.wheels_folder(tmp_path, both, 13)

    wheels.download(folder, both, pip, index)

    assert len(list(folder.glob("*.whl"))) == 2


def with_program(folder: Path, name: str, body: str) -> str:
    """Create a wheel with a program; return its line of a lock file."""
    make_wheel(folder, name)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}-1.0.data/scripts/{name}", body)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{name}==1.0 --hash=sha256:{digest}\n"


def test_a_program_is_unpacked_from_its_wheel(tmp_path):
    lock = with_program(tmp_path / "wheels", "peeler", "#!/bin/sh\necho peeled\n")

    wheels.unpack_programs(tmp_path / "wheels", lock, tmp_path / "bin")

    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["peeler"]
    result = subprocess.run([tmp_path / "bin/peeler"], capture_output=True, text=True, check=True)
    assert result.stdout == "peeled\n"


def test_wheels_with_another_content_are_removed_so_that_setup_downloads_them_again(tmp_path):
    lock = with_program(tmp_path / "wheels", "peeler", "#!/bin/sh\necho peeled\n")
    with_program(tmp_path / "wheels", "peeler", "#!/bin/sh\necho evil\n")

    with pytest.raises(EnvError, match=r"peeler-1\.0\S* did not match a hash in the lock file"):
        wheels.unpack_programs(tmp_path / "wheels", lock, tmp_path / "bin")
    assert list((tmp_path / "bin").iterdir()) == []
    assert not (tmp_path / "wheels").exists()


def test_an_index_that_is_set_for_uv_is_also_used_by_pip():
    variables = wheels.pip_environment({"UV_INDEX_URL": "http://127.0.0.1:9/simple"})

    assert variables["PIP_INDEX_URL"] == "http://127.0.0.1:9/simple"


def create_environments(tmp_path, *names):
    """Create environments, each older than the one before it."""
    for age, name in enumerate(names):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1_000_000 - age, 1_000_000 - age))


def test_old_environments_are_removed_except_the_current_one_and_the_newest(tmp_path):
    create_environments(tmp_path, ENV_B, ENV_C, ENV_D, ENV_A)

    to_remove = python_env.prunable(tmp_path, ENV_A, used=set(), keep=1)

    assert [path.name for path in to_remove] == [ENV_C, ENV_D]


def test_an_environment_in_use_is_never_removed(tmp_path):
    create_environments(tmp_path, ENV_B, ENV_C)

    assert python_env.prunable(tmp_path, ENV_A, used={ENV_C, ENV_B}, keep=0) == []


def test_an_environment_that_a_process_was_started_from_is_in_use(tmp_path):
    (tmp_path / "812").mkdir()
    (tmp_path / "812/cmdline").write_text(f"/opt/tpufleet/envs/{ENV_A}/bin/python\0-m\0train\0")
    (tmp_path / "813").mkdir()
    (tmp_path / "813/maps").write_text(f"7f r-xp /opt/tpufleet/envs/{ENV_B}/lib/x.so\n")

    assert python_env.used_by_processes(tmp_path) == {ENV_A, ENV_B}


def test_only_the_environment_of_an_active_run_is_in_use(tmp_path):
    for run, name in (("up", ENV_A), ("ended", ENV_B)):
        (tmp_path / run).mkdir()
        (tmp_path / run / "command").write_text(f"/opt/tpufleet/envs/{name}/bin/python")

    assert python_env.used_by_runs(tmp_path, ["up", "gone"]) == {ENV_A}


def test_without_an_answer_of_systemd_no_environment_is_removed(tmp_path, systemctl, monkeypatch):
    monkeypatch.setattr(env_module, "CACHE", tmp_path / "cache")
    create_environments(tmp_path, ENV_B)
    systemctl.write_text("#!/bin/sh\necho Failed to connect to bus >&2\nexit 1\n")
    options = {"keep": 0, "lock": ""}

    with pytest.raises(RunError, match="Failed to connect to bus"):
        remove_unused_files(options, tmp_path / ENV_A)
    assert (tmp_path / ENV_B).is_dir()

    systemctl.write_text("#!/bin/sh\n")
    assert remove_unused_files(options, tmp_path / ENV_A) == [ENV_B]
