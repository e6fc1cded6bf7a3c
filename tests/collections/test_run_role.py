"""What the role run makes of several TPUs' answers, as Ansible evaluates it."""

import os
import subprocess
import sys
from pathlib import Path

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


def test_each_run_of_a_play_is_judged_by_its_own_workers(tmp_path):
    play = tmp_path / "play.yml"
    play.write_text(PLAY.format(vars=ROOT / "roles/run/vars/main.yml"))
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "a-w0,b-w0,b-w1,", play],
        cwd=ROOT,
        env={
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_INVENTORY_ENABLED": "ansible.builtin.host_list",
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
