"""The program tpufleet-python, with a temporary directory as a worker's /opt/tpufleet."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.code_tree import stage

from harness.playbooks import ROOT

ASK = "import os, sys; print(sys.path[1:2], os.getcwd(), os.environ.get('LD_PRELOAD'))"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A worker's /opt/tpufleet after setup, without a release; its devices are in ``tmp_path``."""
    root = tmp_path / "opt"
    stage(ROOT / "roles/run/files", [], root / "releases/bbbb", is_own=True)
    (root / "programs").symlink_to("releases/bbbb")
    env = root / "envs/0123456789abcdef"
    (env / "bin").mkdir(parents=True)
    (env / "bin/python").symlink_to(sys.executable)
    stamp = {"content": "c", "environment": env.name, "device_glob": f"{tmp_path}/accel*"}
    (root / "ready.json").write_text(json.dumps(stamp))
    return root


@pytest.fixture
def release(root: Path) -> Path:
    """The release that was pushed last, with a module ``trainer``."""
    release = root / "releases/aaaa"
    release.mkdir(parents=True)
    (release / "trainer.py").write_text("import sys; print('trained', sys.argv[1])\n")
    (root / "current").symlink_to("releases/aaaa")
    return release


def run_python(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "programs/tpufleet-python", *arguments],
        env={"PATH": os.environ["PATH"], **variables},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_module_of_the_release_runs_in_the_users_directory(root, release):
    result = run_python(root, "-m", "trainer", "well")
    assert (result.stdout, result.stderr, result.returncode) == ("trained well\n", "", 0)

    result = run_python(root, "-c", ASK, LD_PRELOAD="")
    assert result.stdout.split() == [f"['{release}']", str(root), "None"]


def test_the_path_of_the_user_follows_the_release(root, release):
    result = run_python(root, "-c", "import sys; print(*sys.path[1:3])", PYTHONPATH="/mine")
    assert result.stdout.split() == [str(release), "/mine"]


def test_without_a_release_python_runs_and_the_command_to_push_one_is_shown(root):
    result = run_python(root, "-c", "print(1)")
    assert result.stdout == "1\n"
    assert "no release was pushed to this worker" in result.stderr


@pytest.mark.parametrize("lost", ["ready.json", "envs/0123456789abcdef/bin/python"])
def test_without_an_environment_the_error_names_setup(root, release, lost):
    (root / lost).unlink()
    result = run_python(root, "-c", "print(1)")
    assert (result.returncode, result.stdout) == (4, "")
    assert "Create it: ansible-playbook setup.yml" in result.stderr


@pytest.mark.parametrize(
    ("devices", "platforms", "is_shown"),
    [(1, {}, True), (0, {}, False), (1, {"JAX_PLATFORMS": "cpu"}, False)],
)
def test_a_run_that_holds_the_devices_is_named(
    root, release, tmp_path, systemctl, devices, platforms, is_shown
):
    for number in range(devices):
        (tmp_path / f"accel{number}").touch()
    systemctl.write_text(
        "#!/bin/sh\nprintf 'Id=tpufleet-run@mine.service\\nActiveState=active\\n'\n"
    )
    result = run_python(root, "-c", "print(1)", **platforms)
    assert result.stdout == "1\n"
    assert ("kill.yml -e run=mine" in result.stderr) == is_shown


def test_without_an_answer_of_systemd_a_warning_about_held_devices_is_shown(
    root, release, tmp_path, systemctl
):
    (tmp_path / "accel0").touch()
    systemctl.write_text("#!/bin/sh\necho Failed to connect to bus >&2\nexit 1\n")

    result = run_python(root, "-c", "print(1)")

    assert result.stdout == "1\n"
    assert "cannot tell whether a run holds the devices" in result.stderr
    assert "Failed to connect to bus" in result.stderr
