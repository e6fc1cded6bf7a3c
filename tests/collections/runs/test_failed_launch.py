"""What a launch that fails on one worker leaves in the record, by the tasks of the role run."""

import json
from pathlib import Path

import pytest

from tests.collections.runs.valid_record import record_fields
from tests.collections.test_run_role import played

PLAY = """
- hosts: all
  gather_facts: false
  connection: local
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    records_location: FOLDER
    relaunch: RELAUNCH
    wait: started
    __run_plan:
      parts:
        pod-w0: {run: mine, process_id: 0, num_processes: 2}
        pod-w1: {run: mine, process_id: 1, num_processes: 2}
    __run_verdict: {launch: [mine], problems: {}}
    __run_wanted: {runs: {mine: {launch: true, was_wanted: WAS, record: {attempt: 2}}}}
  tasks:
    - name: Lose a worker between the check and the start
      ansible.builtin.set_fact:
        __run_ready: "{{ {'started': true, 'info': {}} if is_first else {} }}"
        __run_started: "{{ {} if is_first else {'unreachable': true, 'msg': 'ssh: no route'} }}"
      vars:
        is_first: "{{ inventory_hostname == 'pod-w0' }}"
    - ansible.builtin.include_role:
        name: run
        tasks_from: start
"""


@pytest.mark.parametrize(("was_wanted", "wanted"), [(True, "running"), (False, "stopped")])
def test_a_worker_lost_at_the_start_stops_only_a_run_that_was_not_wanted_before(
    tmp_path: Path, was_wanted: bool, wanted: str
):
    record = tmp_path / "runs/mine.json"
    record.parent.mkdir()
    record.write_text(json.dumps(record_fields(attempt=2, generation=5)))
    play = PLAY.replace("FOLDER", str(tmp_path)).replace("WAS", str(was_wanted).lower())
    play = play.replace("RELAUNCH", str(was_wanted).lower())

    done = played(tmp_path, play, "-i", "pod-w0,pod-w1,")

    assert done.returncode != 0
    assert "pod-w1: can't be reached" in " ".join(done.stdout.split())
    after = json.loads(record.read_text())
    assert after["wanted"] == wanted
    event = after["history"][-1]
    assert event["kind"] == "launch_failed"
    assert event["text"].startswith("pod-w1")
