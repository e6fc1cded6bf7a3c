"""A mirror from which uv downloads Python if the system's Python is too old."""

import sys
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.python_env import EnvError
from ansible_collections.tpufleet.core.plugins.modules.python_toolchain import (
    install_python,
    installed_python,
    remove_broken,
)

from harness.scripted_api import error
from tests.collections.running_modules import run_module

UV = Path(sys.prefix) / "bin/uv"


@pytest.mark.parametrize("login", ["", "ada:hunter2hunter2@"], ids=["no password", "a password"])
def test_a_failed_download_of_a_newer_python_is_one_line_with_the_fix(tmp_path, scripted, login):
    scripted.handler = lambda _: error(404, "not found")
    url = f"{scripted.endpoint}/python"
    shown = r"http://\*{8}" if login else url

    text = f"Python is too old, and no newer one could be downloaded from {shown}. Set python_mirr"
    with pytest.raises(EnvError, match=text) as caught:
        install_python(UV, tmp_path, "3.12", url.replace("://", f"://{login}"), {})

    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    paths = [request.path for request in scripted.asked]
    assert paths
    assert all(path.startswith("/python/") and "cpython-3.12" in path for path in paths)
    assert installed_python(tmp_path, "3.12") is None


def test_an_installed_python_is_found_without_network_access(tmp_path):
    program = tmp_path / "cpython-3.12.9-linux-x86_64-gnu/bin/python3.12"
    program.parent.mkdir(parents=True)
    program.touch()

    assert installed_python(tmp_path, "3.12") == program


def test_a_dry_run_on_a_bare_machine_lists_the_changes(tmp_path):
    result = run_module(
        "python_toolchain", check=True, lock="uv==1.0\n", constants={"ROOT": str(tmp_path)}
    )

    assert result["changed"]
    assert not any(path.name.startswith("uv") for path in tmp_path.iterdir())


def test_a_python_that_does_not_run_is_installed_again(tmp_path):
    program = tmp_path / "python/cpython-3.12.9-linux-x86_64-gnu/bin/python3.12"
    program.parent.mkdir(parents=True)
    program.touch()
    result = run_module(
        "python_toolchain",
        check=True,
        lock="uv==1.0\n",
        minimum=99,
        constants={"ROOT": str(tmp_path)},
    )
    assert result["python"] != str(program)


def test_half_copies_of_a_python_are_removed_and_others_stay(tmp_path):
    names = ("cpython-3.12.9-linux", "cpython-3.12.8-linux", "cpython-3.13.1-linux")
    without_program, broken, other = (tmp_path / name for name in names)
    for home in (without_program, broken, other):
        (home / "bin").mkdir(parents=True)
    (broken / "bin/python3.12").touch()

    remove_broken(tmp_path, "3.12")

    assert list(tmp_path.iterdir()) == [other]
