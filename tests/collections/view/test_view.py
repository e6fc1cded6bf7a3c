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
FAIL = """
- name: Check the free space
  ansible.builtin.fail:
    msg: "/opt has 2 GB free, 12 GB are needed: free some space, then run setup.yml again"
  when: inventory_hostname in ['pod-w1', 'pod-w3']
- name: Run a command
  ansible.builtin.command: sh -c 'echo no such chip >&2; exit 4'
  changed_when: false
  when: inventory_hostname == 'pod-w2'
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
"""


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


@pytest.fixture(scope="module")
def changed(tmp_path_factory) -> PlayOutput:
    """A play with one change, and another play without hosts."""
    stage = Stage(tmp_path_factory.mktemp("changed"))
    stage.more_plays = "- name: Left out\n  hosts: '!all'\n"
    return stage.play(CHANGE)


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> PlayOutput:
    return Stage(tmp_path_factory.mktemp("many")).play(MANY)


def test_a_change_is_one_line_for_all_workers_and_an_unchanged_task_is_not_shown(changed):
    assert lines_of(changed.text)[:3] == [
        "Try it",
        "  changed   Change something  pod-w[0-3]",
        "pod-w[0-3] : ok=2 changed=1",
    ]


def test_a_play_without_hosts_prints_nothing(changed):
    assert "skipping" not in changed.text
    assert "play: Left out" in changed.log


def test_the_last_line_names_the_log_that_holds_everything(changed):
    log = Path(lines_of(changed.text)[-1].split()[-1])

    assert log.read_text() == changed.log
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert "ok pod-w3" in changed.log
    assert "task: Leave something" in changed.log


def test_output_of_a_debug_task_is_printed_unchanged(many):
    assert lines_of(many.text)[1:3] == ["one", "two"]


def test_a_loop_names_its_changed_items(many):
    assert "  changed   Put files (a, c, d, 1 more)  pod-w[0-3]" in lines_of(many.text)


def test_an_ignored_failure_is_not_reported(many):
    assert many.code == 0
    assert "  ignored   Try  pod-w2" in lines_of(many.text)
    assert "FAILED" not in many.text


def test_failures_are_printed_last_once_each_and_without_control_codes(stage):
    shown = stage.play(CHANGE + FAIL)

    last = lines_of(shown.text)[-7:-1]
    assert shown.code == 2
    assert last[:4] == [
        "FAILED  pod-w[1,3]  Check the free space",
        "  /opt has 2 GB free, 12 GB are needed: free some space, then run setup.yml again",
        "FAILED  pod-w2  Run a command",
        "  The command exited with a non-zero return code: no such chip",
    ]
    assert "\x1b" not in shown.text
    assert "\r" not in shown.text


def test_a_play_without_changes_prints_only_its_recap(stage):
    shown = stage.play(CHANGE, "--start-at-task", "Leave something")

    assert lines_of(shown.text)[0] == "pod-w[0-3] : ok=1 changed=0"


def test_check_mode_shows_what_would_change(stage):
    shown = stage.play(
        "- name: Write\n  ansible.builtin.copy:\n    content: x\n"
        f"    dest: {stage.directory}/new\n    mode: '0644'\n",
        "--check",
        "--diff",
        "--limit=pod-w0,pod-w1",
    )

    lines = lines_of(shown.text)
    assert "  would change  Write  pod-w[0-1]" in lines
    assert lines.count("+x") == 1


def test_a_secret_is_neither_printed_nor_logged(stage):
    shown = stage.play(
        "- name: Use a secret\n  ansible.builtin.command: echo hunter2\n  no_log: true\n"
        "- name: Fail with a secret\n  ansible.builtin.command: sh -c 'echo hunter2; exit 1'\n"
        "  no_log: true\n",
        "--limit=pod-w0",
    )

    assert shown.code == 2
    assert "hunter2" not in shown.text + shown.log


def test_option_v_prints_ansibles_default_lines(stage):
    shown = stage.play(CHANGE, "-v")

    assert "TASK [Change something]" in shown.text
    assert "changed: [pod-w0]" in shown.text
    assert "the full log is" in lines_of(shown.text)[-1]


def test_the_free_strategy_prints_ansibles_default_lines(stage):
    shown = stage.play(CHANGE, ANSIBLE_STRATEGY="free")

    assert "changed: [pod-w3]" in shown.text


def test_a_playbook_succeeds_although_its_log_cannot_be_written(stage):
    shown = stage.play(CHANGE, TPUFLEET_LOG_DIR="/proc/nowhere")

    assert shown.code == 0
    assert "TPUFLEET_LOG_DIR" in shown.text


def test_a_terminal_shows_the_task_in_a_live_line_that_disappears_at_the_end(stage):
    shown = stage.play_on_terminal(
        "- name: Take a while\n  ansible.builtin.command: sleep 1\n  changed_when: false\n" + CHANGE
    )

    assert "Take a while  pod " in shown.text
    screen = screen_of(shown.text)
    assert screen[:3] == [
        "Try it",
        "  changed   Change something  pod-w[0-3]",
        "pod-w[0-3] : ok=3 changed=1",
    ]
    assert len([line for line in screen if line]) == 4


def test_no_color_is_respected_on_a_terminal(stage):
    stage.environment["NO_COLOR"] = "1"

    assert "\x1b[0;" not in stage.play_on_terminal(CHANGE).text


WARNS = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({"text": {"type": "str"}})
module.warn(module.params["text"])
module.exit_json(changed=False)
"""


@pytest.fixture
def warns(stage):
    (stage.directory / "library").mkdir()
    (stage.directory / "library/warns.py").write_text(WARNS)


@pytest.mark.usefixtures("warns")
def test_equal_warnings_of_several_workers_are_one_line_that_names_them(stage):
    shown = stage.play(
        "- name: Warn\n  warns:\n"
        "    text: \"{{ 'own' if inventory_hostname == 'pod-w2' else 'the clock is late' }}\"\n"
    )

    output = " ".join(shown.text.split())
    assert "[WARNING]: pod-w[0-1,3]: the clock is late" in output
    assert "[WARNING]: pod-w2: own" in output
    assert output.count("WARNING") == 2


@pytest.mark.usefixtures("warns")
def test_a_warning_of_a_run_once_task_names_no_worker(stage):
    shown = stage.play("- name: Warn\n  warns:\n    text: the clock is late\n  run_once: true\n")

    assert "[WARNING]: the clock is late" in shown.text
