"""The values that playbooks and roles share, as Ansible evaluates them."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
    tasks = [
        {
            "ansible.builtin.assert": {"that": f"checkpoints_location == '{location}'"},
            "vars": variables,
        }
        for variables, location in cases
    ]
    play = {"hosts": "localhost", "gather_facts": False, "vars_files": [str(SHARED)]}

    done = played(tmp_path, json.dumps([play | {"tasks": tasks}]), "-i", "localhost,")

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ok={len(cases)} " in done.stdout


def played(
    folder: Path, text: str, *words: str, parser: str = "ansible.builtin.host_list"
) -> subprocess.CompletedProcess[str]:
    play = folder / "play.yml"
    play.write_text(text)
    return subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), *words, play],
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
