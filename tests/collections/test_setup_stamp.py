"""The setup stamp: programs on workers can read it, and a changed role or module invalidates it."""

import json
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.setup_stamp import read_stamp
from ansible_collections.tpufleet.core.plugins.plugin_utils.setup.files_checksum import (
    files_checksum,
)

from harness.playbooks import ROOT
from tests.collections.role_templates import run_tasks


def write_stamp(tmp_path: Path, *options: str) -> Path:
    """Run the role ``setup_stamp``; return the path of the stamp."""
    variables = {
        "__setup_stamp_path": str(tmp_path / "ready.json"),
        "__setup_stamp_wanted": "abc",
        "jax_environment": {"id": "0123456789abcdef"},
        "jax_device_glob": "/dev/accel*",
    }
    (tmp_path / "firewall/tasks").mkdir(parents=True)
    (tmp_path / "firewall/tasks/main.yml").write_text("[]")
    roles = (tmp_path / "firewall", ROOT / "roles/setup_stamp")
    tasks = [{"import_role": {"name": str(role)}} for role in roles]
    run_tasks(tmp_path, tasks, "-e", json.dumps(variables), *options)
    return tmp_path / "ready.json"


def test_the_programs_on_workers_read_the_stamp_that_the_role_writes(tmp_path):
    write_stamp(tmp_path, "--tags", "all", "--skip-tags", "not-a-role")

    assert read_stamp(tmp_path) == {
        "content": "abc",
        "environment": "0123456789abcdef",
        "device_glob": "/dev/accel*",
    }


def test_a_setup_that_skips_one_of_its_roles_writes_no_stamp(tmp_path):
    assert not write_stamp(tmp_path, "--skip-tags", "firewall").exists()


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    """A directory with one role: a task file, a README and a bytecode file."""
    folder = tmp_path / "roles"
    for name in ("base/tasks/main.yml", "base/README.md", "base/__pycache__/filter.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("first")
    return folder


@pytest.mark.parametrize(
    ("name", "is_changed"),
    [
        ("base/tasks/main.yml", True),
        ("base/tasks/new.yml", True),
        ("base/README.md", False),
        ("base/__pycache__/filter.pyc", False),
        ("base/tasks/.main.yml.swp", False),
    ],
)
def test_only_a_file_that_setup_uses_changes_the_checksum(roles: Path, name: str, is_changed: bool):
    before = files_checksum([str(roles)])
    (roles / name).write_text("second")
    assert (files_checksum([str(roles)]) != before) == is_changed


def test_a_renamed_file_changes_the_checksum(roles: Path):
    before = files_checksum([str(roles)])
    (roles / "base/tasks").rename(roles / "base/handlers")
    assert files_checksum([str(roles)]) != before


def test_the_checksum_is_the_same_in_another_clone(roles: Path, tmp_path: Path):
    before = files_checksum([str(roles)])
    clone = tmp_path / "clone"
    clone.mkdir()
    assert files_checksum([str(roles.rename(clone / "roles"))]) == before
