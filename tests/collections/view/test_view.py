"""The terminal view of real playbooks: changes, failures, warnings, logs and the live line."""

import stat
from pathlib import Path

import pytest

from tests.collections.view.conftest import PlayOutput, Stage
from tests.collections.view.terminal import screen_of

CHANGE = """
- name: Change something
  ansible.builtin.set_fact:
    something: changed
  changed_when: true
- name: Leave something
  ansible.builtin.set_fact:
    something: left
"""
MANY = """
- name: Say
  ansible.builtin.debug:
    msg: |
      one
      two
  run_once: true
- name: Put files
  ansible.builtin.assert: {that: true, quiet: true}
  changed_when: item != 'b'
  loop: [a, b, c, d, e]
- name: Try
  ansible.builtin.command: "false"
  ignore_errors: true
  when: inventory_hostname == 'pod-w2'
- name: Ask
  ansible.builtin.ping:
  ignore_unreachable: true
  vars: {ansible_connection: ssh, ansible_host: 127.0.0.1, ansible_port: 1}
  when: inventory_hostname == 'pod-w2'
"""
MORE_PLAYS = """
- name: Left out
  hosts: '!all'
- name: Only look
  hosts: all
  gather_facts: false
  tasks:
    - name: Leave something else
      ansible.builtin.assert: {that: true, quiet: true}
"""
FAIL = """
- name: Check the free space
  ansible.builtin.fail:
    msg: "/opt has 2 GB free, 12 GB are needed: free some space, then run setup.yml again"
  when: inventory_hostname in ['pod-w1', 'pod-w3']
- name: Run a command
  ansible.builtin.command: sh -c 'printf %0150d 4 >&2; exit 4'
  changed_when: false
  when: inventory_hostname == 'pod-w2'
- name: Use a secret
  ansible.builtin.command: echo hunter2
  when: inventory_hostname == 'pod-w0'
  no_log: true
- name: Fail with a secret
  ansible.builtin.command: sh -c 'echo hunter2; exit 1'
  when: inventory_hostname == 'pod-w0'
  no_log: true
"""
ONE_WORKER, TWO_WORKERS = "--limit=pod-w0", "--limit=pod-w0,pod-w1"


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


@pytest.fixture(scope="module")
def succeeded(tmp_path_factory) -> PlayOutput:
    """A playbook that succeeds. Of its last two plays, one has no hosts, one changes nothing."""
    stage = Stage(tmp_path_factory.mktemp("succeeded"))
    stage.more_plays = MORE_PLAYS
    return stage.play(CHANGE + MANY)


@pytest.fixture(scope="module")
def failed(tmp_path_factory) -> PlayOutput:
    return Stage(tmp_path_factory.mktemp("failed")).play(CHANGE + FAIL)


def test_only_messages_changes_and_ignored_failures_are_printed_for_all_workers_at_once(succeeded):
    assert succeeded.code == 0
    assert lines_of(succeeded.text)[:-1] == [
        "Try it",
        "  changed   Change something  pod-w[0-3]",
        "one",
        "two",
        "  changed   Put files (a, c, d, 1 more)  pod-w[0-3]",
        "  ignored   Try  pod-w2",
        "  ignored   Ask  pod-w2",
        "pod-w0 : ok=5 changed=2",
        "pod-w[1,3] : ok=4 changed=2",
        "pod-w2 : ok=6 changed=3 ignored=2",
    ]


def test_the_last_line_names_the_log_that_holds_everything(succeeded):
    log = Path(lines_of(succeeded.text)[-1].split()[-1])

    assert log.read_text() == succeeded.log
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert "ok pod-w3" in succeeded.log
    assert "task: Leave something" in succeeded.log
    assert "play: Left out" in succeeded.log


def test_failures_are_printed_last_once_each_and_without_control_codes(failed):
    lines = lines_of(failed.text)

    assert failed.code == 2
    first = lines.index("FAILED  pod-w[1,3]  Check the free space")
    assert lines.count(lines[first]) == 1
    # When a task fails, only the first 140 characters of its error are printed.
    error = f"The command exited with a non-zero return code: {0:091}…"
    assert f"  failed    Run a command  pod-w2: {error}" in lines
    assert lines[-2].startswith("pod-w")  # the recap, above the path of the log
    assert lines[first + 1 : first + 5] == [
        "  /opt has 2 GB free, 12 GB are needed: free some space, then run setup.yml again",
        "FAILED  pod-w2  Run a command",
        f"  The command exited with a non-zero return code: {4:0150}",
        "FAILED  pod-w0  Fail with a secret",
    ]
    assert "\x1b" not in failed.text
    assert "\r" not in failed.text


def test_a_secret_is_neither_printed_nor_logged(failed):
    assert "Fail with a secret" in failed.text
    assert "hunter2" not in failed.text + failed.log


def test_check_mode_shows_what_would_change(stage):
    shown = stage.play(
        "- name: Write\n  ansible.builtin.copy:\n    content: x\n"
        f"    dest: {stage.directory}/new\n    mode: '0644'\n",
        "--check",
        "--diff",
        TWO_WORKERS,
    )

    lines = lines_of(shown.text)
    assert "  would change  Write  pod-w[0-1]" in lines
    assert lines.count("+x") == 1


def test_option_v_prints_ansibles_default_lines(stage):
    stage.more_plays = MORE_PLAYS

    shown = stage.play(CHANGE, "-v", ONE_WORKER)

    assert "TASK [Change something]" in shown.text
    assert "changed: [pod-w0]" in shown.text
    assert "skipping: no hosts matched" in shown.text
    assert "the full log is" in lines_of(shown.text)[-1]


def test_the_free_strategy_prints_ansibles_default_lines(stage):
    shown = stage.play(CHANGE, ONE_WORKER, ANSIBLE_STRATEGY="free")

    assert "changed: [pod-w0]" in shown.text


def test_a_playbook_succeeds_although_its_log_cannot_be_written(stage):
    shown = stage.play(CHANGE, ONE_WORKER, TPUFLEET_LOG_DIR="/proc/nowhere")

    assert shown.code == 0
    assert "TPUFLEET_LOG_DIR" in shown.text


def test_a_terminal_shows_the_task_in_a_live_line_that_disappears_at_the_end(stage):
    shown = stage.play_on_terminal(
        "- name: Take a while\n  ansible.builtin.command: sleep 1\n  changed_when: false\n"
        + CHANGE,
        TWO_WORKERS,
    )

    assert "Take a while  pod " in shown.text
    screen = screen_of(shown.text)
    assert screen[:3] == [
        "Try it",
        "  changed   Change something  pod-w[0-1]",
        "pod-w[0-1] : ok=3 changed=1",
    ]
    assert len([line for line in screen if line]) == 4


def test_no_color_is_respected_on_a_terminal(stage):
    stage.environment["NO_COLOR"] = "1"

    assert "\x1b[0;" not in stage.play_on_terminal(CHANGE, ONE_WORKER).text


WARNS = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({"text": {"type": "str"}})
module.warn(module.params["text"])
module.exit_json(changed=False)
"""


def test_a_warning_names_its_workers_once_and_its_command_the_fleet(stage):
    (stage.directory / "library").mkdir()
    (stage.directory / "library/warns.py").write_text(WARNS)

    stage.more_plays = """
- hosts: localhost
  gather_facts: false
  tasks: [{warns: {text: no quota}}]
"""

    shown = stage.play(
        "- name: Warn\n  warns:\n"
        "    text: \"{{ 'own' if inventory_hostname == 'pod-w2' else 'the clock is late' }}\"\n"
        "- name: Warn once\n  warns:\n    text: 'not set up: ansible-playbook setup.yml'\n"
        "  run_once: true\n",
        "--limit=pod-w0,pod-w1,pod-w2,localhost",
        "-e",
        "fleet_state=/s",
    )

    output = " ".join(shown.text.split())
    assert "[WARNING]: pod-w[0-1]: the clock is late" in output
    assert "[WARNING]: pod-w2: own" in output
    assert "[WARNING]: not set up: ansible-playbook -e fleet_state=/s setup.yml" in output
    assert "[WARNING]: no quota" in output
    assert output.count("WARNING") == 4


def test_a_limit_that_excludes_localhost_is_a_warning(stage):
    stage.more_plays = "- {name: Create, hosts: localhost}\n- {name: Ask, hosts: pod-w3}\n"

    output = " ".join(stage.play(CHANGE, ONE_WORKER).text.split())

    assert "skipped 'Create': it runs on localhost, which --limit pod-w0 excludes" in output
    assert output.count("skipping: no hosts matched") == 1
