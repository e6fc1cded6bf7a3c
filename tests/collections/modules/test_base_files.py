"""The role base: directories that systemd-tmpfiles creates and old files that it removes."""

import os
import shutil
import subprocess

import pytest

from tests.collections.role_templates import rendered

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("systemd-tmpfiles"), reason="needs root and systemd"
)


def test_files_of_earlier_versions_are_removed_and_all_others_stay(tmp_path):
    old, program = (
        tmp_path / "opt/tpufleet/bin/attempt_meeting.py",
        tmp_path / "opt/tpufleet/bin/uv",
    )
    old.parent.mkdir(parents=True)
    for file in (old, program):
        file.touch()
    text = rendered(
        "base/tmpfiles.conf.j2",
        __base_user="root",
        __base_state="/var/lib/tpufleet",
        base_hugepages="",
    )

    subprocess.run(
        ["systemd-tmpfiles", "--create", "--remove", f"--root={tmp_path}", "-"],
        input=text,
        text=True,
        check=True,
    )

    assert not old.exists()
    assert program.exists()
    assert (tmp_path / "var/lib/tpufleet/runs").is_dir()
