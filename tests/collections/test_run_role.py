"""The values that playbooks and roles share, as Ansible evaluates them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.playbooks import ROOT

SHARED = ROOT / "playbooks/group_vars/all.yml"


def test_checkpoints_go_to_the_bucket_if_there_is_one(tmp_path):
    cases = [
        ({}, "/mnt/shared/checkpoints"),
        ({"shared_dir": "/nfs"}, "/nfs/checkpoints"),
        ({"bucket": "gs://mine"}, "gs://mine/checkpoints"),
        ({"bucket": "gs://mine/", "shared_dir": "/nfs"}, "gs://mine/checkpoints"),
        ({"bucket": "gs://mine", "checkpoints": "/nfs/there"}, "/nfs/there"),
    ]

    check_values(tmp_path, "checkpoints_location", cases)


def test_output_goes_to_the_bucket_if_there_is_one(tmp_path):
    cases = [
        ({"fleet_state": "/records"}, "/records/outputs"),
        ({"fleet_state": "/records", "bucket": ""}, "/records/outputs"),
        ({"fleet_state": "/records", "bucket": "gs://mine/"}, "gs://mine/runs"),
        ({"bucket": "gs://mine", "outputs": "gs://other/there"}, "gs://other/there"),
        ({"bucket": "gs://mine", "outputs": "/here"}, "/here"),
    ]

    check_values(tmp_path, "outputs_location", cases)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the groups of files")
@pytest.mark.parametrize(
    ("pattern", "line"),
    [("accel*", "SupplementaryGroups=44 107"), ("none*", None), (None, None)],
)
def test_jupyter_may_open_the_devices_of_the_worker(tmp_path, pattern, line):
    devices = tmp_path / "dev"
    devices.mkdir()
    for name, gid, mode in (
        ("accel0", 107, 0o660),
        ("accel1", 44, 0o660),
        ("accel2", 107, 0o660),
        ("accel3", 5, 0o600),
        ("accel4", 0, 0o660),
        ("other", 6, 0o660),
    ):
        (devices / name).touch()
        os.chown(devices / name, 0, gid)
        (devices / name).chmod(mode)
    tasks = yaml.safe_load((ROOT / "roles/run/tasks/main.yml").read_text())
    [find] = [task for task in tasks if "ansible.builtin.find" in task]
    template = {
        "src": str(ROOT / "roles/run/templates/tpufleet-jupyter.service.j2"),
        "dest": str(tmp_path / "unit"),
        "mode": "0644",
    }
    variables = {
        "run_device_glob": f"{devices}/{pattern}" if pattern else "",
        "run_shared_dir": "/mnt/shared",
        "__run_user": "tpufleet",
    }
    tasks = [find, {"ansible.builtin.template": template}]
    play = {"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": tasks}

    done = played(tmp_path, json.dumps([play]), "-i", "localhost,", "-c", "local")

    assert done.returncode == 0, done.stdout + done.stderr
    unit = (tmp_path / "unit").read_text().splitlines()
    assert [each for each in unit if "Groups" in each] == ([line] if line else [])
    assert "WorkingDirectory=~" in unit


def check_values(folder: Path, name: str, cases: list[tuple[dict[str, str], str]]) -> None:
    """Check the value of a shared variable for each case: other variables and expected value."""
    tasks = [
        {"ansible.builtin.assert": {"that": f"{name} == '{expected}'"}, "vars": variables}
        for variables, expected in cases
    ]
    play = {"hosts": "localhost", "gather_facts": False, "vars_files": [str(SHARED)]}

    done = played(folder, json.dumps([play | {"tasks": tasks}]), "-i", "localhost,")

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ok={len(cases)} " in done.stdout


def played(
    folder: Path, text: str, *arguments: str, parser: str = "ansible.builtin.host_list"
) -> subprocess.CompletedProcess[str]:
    play = folder / "play.yml"
    play.write_text(text)
    return subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), *arguments, play],
        cwd=ROOT,
        env={
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_INVENTORY_ENABLED": parser,
            "ANSIBLE_LOCAL_TEMP": str(folder / "ansible"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
