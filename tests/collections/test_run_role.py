"""Variables that all playbooks share, and tasks of the role run, both evaluated by Ansible."""

import os
import re
import shutil

import pytest
import yaml

from harness.playbooks import ROOT
from tests.collections.role_templates import run_tasks

SHARED = ROOT / "playbooks/group_vars/all.yml"
TASKS = yaml.safe_load((ROOT / "roles/run/tasks/main.yml").read_text())
DIRECTORY_TASKS = [task for task in TASKS if "shared directories" in task["name"]]


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

    result = run_tasks(tmp_path, tasks, vars_files=[str(SHARED)])

    assert f"ok={len(cases)} " in result.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the groups of files")
def test_jupyter_may_open_the_devices_of_the_worker(tmp_path):
    devices = tmp_path / "dev"
    devices.mkdir()
    files = [
        *(("accel0", 107, 0o660), ("accel1", 44, 0o660), ("accel2", 107, 0o660)),
        *(("accel3", 5, 0o600), ("accel4", 0, 0o660), ("other", 6, 0o660)),
    ]
    for name, gid, mode in files:
        (devices / name).touch()
        os.chown(devices / name, 0, gid)
        (devices / name).chmod(mode)
    cases = {
        f"{devices}/accel*": ["SupplementaryGroups=44 107"],
        f"{devices}/none*": [],
        "": [],
    }
    [find] = [task for task in TASKS if "ansible.builtin.find" in task]
    template = ROOT / "roles/run/templates/tpufleet-jupyter.service.j2"
    unit = f"lookup('ansible.builtin.template', '{template}').splitlines()"
    tasks = []
    for pattern, expected in cases.items():
        groups = f"{unit} | select('search', 'Groups') | list == {expected}"
        check = {"that": [groups, f"'WorkingDirectory=~' in {unit}"]}
        tasks += [find | {"vars": {"run_device_glob": pattern}}, {"ansible.builtin.assert": check}]

    run_tasks(tmp_path, tasks, vars={"run_shared_dir": "/mnt/shared", "__run_user": "tpufleet"})


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("systemd-tmpfiles"), reason="needs root and systemd"
)
def test_shared_directories_are_created_and_corrected_and_changes_are_reported(tmp_path):
    uid, shared, other = 64042, tmp_path / "shared", tmp_path / "other"
    cache, checkpoints = f"{shared}/jax-cache", f"{shared}/checkpoints"
    damage = f"chmod 0777 {cache}; chown 0:0 {checkpoints}"
    replace = f"rmdir {cache}; mkdir {other}; ln -s {other} {cache}; chown -h {uid} {cache}"
    # For each step: a command that prepares it, whether the role then runs in check mode, and the
    # directories that the role reports as changed.
    steps = [
        (f"install -d -o {uid} {shared}", False, [checkpoints, cache]),
        (damage, True, [checkpoints, cache]),
        ("true", False, [checkpoints, cache]),
        (f"stat -c '%a %u %g' {checkpoints} {cache} >{tmp_path}/found", False, []),
        (replace, False, []),
    ]
    tasks = []
    for command, check, _ in steps:
        prepare = {"name": "Prepare", "ansible.builtin.raw": command, "changed_when": False}
        tasks += [prepare, *(task | {"check_mode": check} for task in DIRECTORY_TASKS)]
    in_bucket = {"vars": {"run_checkpoints": "gs://bucket/checkpoints"}}
    tasks[-len(DIRECTORY_TASKS) :] = [task | in_bucket for task in DIRECTORY_TASKS]
    variables = {"run_shared_dir": str(shared), "tpufleet_uid": uid, "run_checkpoints": checkpoints}

    result = run_tasks(tmp_path, tasks, vars=variables)

    reported = [
        re.findall(r"changed: \[localhost\] => \(item=(.*)\)", step)
        for step in result.stdout.split("TASK [Prepare]")[1:]
    ]
    assert reported == [expected for _, _, expected in steps]
    assert (tmp_path / "found").read_text() == f"755 {uid} {uid}\n700 {uid} {uid}\n"
    assert other.stat().st_uid == 0


def test_shared_directories_are_created_where_root_is_mapped_to_nobody(tmp_path):
    tools = {
        "runuser": 'shift 2; exec "$@"',
        "systemd-tmpfiles": "read _ path _; eval test -d $path || exit 73",
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    shared = {"run_shared_dir": f"{tmp_path}/nfs", "run_checkpoints": "gs://bucket/checkpoints"}
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    run_tasks(tmp_path, DIRECTORY_TASKS, environment=path, vars={**shared, "tpufleet_uid": 64042})
