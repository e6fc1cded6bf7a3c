"""What the role run makes of variables and of several TPUs' answers, as Ansible evaluates it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collections.test_inventory import ROOT

PLAY = """
- hosts: all
  gather_facts: false
  vars_files: [{vars}]
  vars:
    __run_plan:
      parts:
        a-w0: {{run: a, process_id: 0}}
        b-w0: {{run: b, process_id: 0}}
        b-w1: {{run: b, process_id: 1}}
  tasks:
    - ansible.builtin.set_fact:
        __run_started: {{info: {{}}}}
      when: inventory_hostname == 'b-w0'
    - ansible.builtin.set_fact:
        __run_outcomes: >-
          {{{{ __run_plan.parts | tpufleet.core.start_outcomes(
                 __run_ready_answers, __run_pushed_answers, __run_started_answers) }}}}
      run_once: true
    - ansible.builtin.assert:
        that: __run_outcome.problems == wanted
      vars:
        wanted: "{{{{ [{{'a': 'a-w0', 'b': 'b-w1'}}[__run_part.run] ~ ': no answer'] }}}}"
"""


PLACES = """
- hosts: localhost
  gather_facts: false
  vars_files: [{defaults}]
  tasks:
    - ansible.builtin.assert:
        that: run_checkpoints == wanted
        quiet: true
"""


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ({}, "/mnt/shared/checkpoints"),
        ({"shared_dir": "/nfs"}, "/nfs/checkpoints"),
        ({"bucket": "gs://mine"}, "gs://mine/checkpoints"),
        ({"bucket": "gs://mine/", "shared_dir": "/nfs"}, "gs://mine/checkpoints"),
        ({"bucket": "gs://mine", "checkpoints": "/nfs/there"}, "/nfs/there"),
    ],
)
def test_checkpoints_go_into_the_bucket_if_there_is_one(tmp_path, told, place):
    words = ["-i", "localhost,", "-e", json.dumps({**told, "wanted": place})]
    done = played(tmp_path, PLACES.format(defaults=ROOT / "roles/run/defaults/main.yml"), *words)

    assert done.returncode == 0, done.stdout + done.stderr


def test_each_run_of_a_play_is_judged_by_its_own_workers(tmp_path):
    play = PLAY.format(vars=ROOT / "roles/run/vars/main.yml")
    done = played(tmp_path, play, "-i", "a-w0,b-w0,b-w1,")

    assert done.returncode == 0, done.stdout + done.stderr


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
