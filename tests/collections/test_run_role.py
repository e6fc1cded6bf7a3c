"""The values that playbooks and roles share, as Ansible evaluates them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.playbooks import ROOT

SHARED = ROOT / "playbooks/group_vars/all.yml"


def test_checkpoints_and_output_go_to_the_bucket_if_there_is_one(tmp_path):
    cases = [  # (shared variable, the variables that a user sets, expected value)
        ("checkpoints", {}, "/mnt/shared/checkpoints"),
        ("checkpoints", {"shared_dir": "/nfs"}, "/nfs/checkpoints"),
        ("checkpoints", {"bucket": "gs://mine"}, "gs://mine/checkpoints"),
        ("checkpoints", {"bucket": "gs://mine/", "shared_dir": "/nfs"}, "gs://mine/checkpoints"),
        ("checkpoints", {"bucket": "gs://mine", "checkpoints": "/nfs/there"}, "/nfs/there"),
        ("outputs", {"fleet_state": "/records"}, "/records/outputs"),
        ("outputs", {"fleet_state": "/records", "bucket": ""}, "/records/outputs"),
        ("outputs", {"fleet_state": "/records", "bucket": "gs://mine/"}, "gs://mine/runs"),
        ("outputs", {"bucket": "gs://mine", "outputs": "gs://other/there"}, "gs://other/there"),
        ("outputs", {"bucket": "gs://mine", "outputs": "/here"}, "/here"),
    ]
    tasks = [
        {"ansible.builtin.assert": {"that": f"{name}_location == '{expected}'"}, "vars": variables}
        for name, variables, expected in cases
    ]
    play = {"hosts": "localhost", "gather_facts": False, "vars_files": [str(SHARED)]}

    result = played(tmp_path, json.dumps([play | {"tasks": tasks}]), "-i", "localhost,")

    assert result.returncode == 0, result.stdout + result.stderr
    assert f"ok={len(cases)} " in result.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the groups of files")
def test_jupyter_may_open_the_devices_of_the_worker(tmp_path):
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
    cases = [
        (f"{devices}/accel*", ["SupplementaryGroups=44 107"]),
        (f"{devices}/none*", []),
        ("", []),
    ]
    plays = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "vars": {
                "run_device_glob": pattern,
                "run_shared_dir": "/mnt/shared",
                "__run_user": "tpufleet",
            },
            "tasks": [
                find,
                {
                    "ansible.builtin.template": {
                        "src": str(ROOT / "roles/run/templates/tpufleet-jupyter.service.j2"),
                        "dest": str(tmp_path / f"unit{number}"),
                        "mode": "0644",
                    }
                },
            ],
        }
        for number, (pattern, _) in enumerate(cases)
    ]

    result = played(tmp_path, json.dumps(plays), "-i", "localhost,", "-c", "local")

    assert result.returncode == 0, result.stdout + result.stderr
    for number, (_, expected) in enumerate(cases):
        unit = (tmp_path / f"unit{number}").read_text().splitlines()
        assert [line for line in unit if "Groups" in line] == expected
        assert "WorkingDirectory=~" in unit


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("systemd-tmpfiles"), reason="needs root and systemd"
)
def test_shared_directories_are_created_and_corrected_and_changes_are_reported(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("ANSIBLE_STDOUT_CALLBACK", "ansible.builtin.default")
    uid, shared, other = 64042, tmp_path / "shared", tmp_path / "other"
    cache, checkpoints = f"{shared}/jax-cache", f"{shared}/checkpoints"
    tasks = yaml.safe_load((ROOT / "roles/run/tasks/main.yml").read_text())
    tasks = [task for task in tasks if "shared directories" in task["name"]]
    damage = f"chmod 0777 {cache}; chown 0:0 {checkpoints}"
    replace = f"rmdir {cache}; mkdir {other}; ln -s {other} {cache}; chown -h {uid} {cache}"
    # For each step: a command that prepares it, whether the role then runs in check mode, and the
    # directories that the role reports as changed.
    steps = [
        (f"install -d -o {uid} {shared}", True, [checkpoints, cache]),
        ("true", False, [checkpoints, cache]),
        ("true", False, []),
        (damage, True, [checkpoints, cache]),
        ("true", False, [checkpoints, cache]),
        (f"stat -c '%a %u %g' {checkpoints} {cache} >{tmp_path}/found", False, []),
        (replace, True, []),
        ("true", False, []),
    ]
    values = {"run_shared_dir": str(shared), "tpufleet_uid": uid}
    plays = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "check_mode": check,
            "vars": {**values, "run_checkpoints": checkpoints},
            "pre_tasks": [
                {"ansible.builtin.shell": command, "check_mode": False, "changed_when": False}
            ],
            "tasks": tasks,
        }
        for command, check, _ in steps
    ]
    plays[-1]["vars"]["run_checkpoints"] = "gs://bucket/checkpoints"

    result = played(tmp_path, json.dumps(plays), "-i", "localhost,", "-c", "local")

    assert result.returncode == 0, result.stdout + result.stderr
    reported = [
        re.findall(r"changed: \[localhost\] => \(item=(.*)\)", play)
        for play in result.stdout.split("PLAY [localhost]")[1:]
    ]
    assert reported == [expected for _, _, expected in steps]
    assert (tmp_path / "found").read_text() == f"755 {uid} {uid}\n700 {uid} {uid}\n"
    assert other.stat().st_uid == 0


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


def test_shared_directories_are_created_where_root_is_mapped_to_nobody(tmp_path, monkeypatch):
    tools = {
        "runuser": 'shift 2; exec "$@"',
        "systemd-tmpfiles": "read _ path _; eval test -d $path || exit 73",
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    tasks = yaml.safe_load((ROOT / "roles/run/tasks/main.yml").read_text())
    book = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "tasks": [task for task in tasks if "shared directories" in task["name"]],
            "vars": {
                "run_shared_dir": f"{tmp_path}/nfs",
                "tpufleet_uid": 64042,
                "run_checkpoints": f"{tmp_path}/nfs/checkpoints",
            },
        }
    ]
    result = played(tmp_path, json.dumps(book), "-i", "localhost,", "-c", "local")
    assert result.returncode == 0, result.stdout
