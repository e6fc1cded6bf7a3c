import re
import stat

import pytest

from tests.collections.view.terminal import screen_of

CHANGE = """
- name: Change something
  ansible.builtin.command: "true"
- name: Leave something
  ansible.builtin.command: "true"
  changed_when: false
"""
FAIL = """
- name: See whether there is room
  ansible.builtin.fail:
    msg: "/opt has 2 GB free, 12 GB are needed: make room there, then setup.yml again"
  when: inventory_hostname in ['pod-w1', 'pod-w3']
- name: Ask a command
  ansible.builtin.command: sh -c 'echo no such chip >&2; exit 4'
  changed_when: false
  when: inventory_hostname == 'pod-w5'
"""


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_a_change_is_one_line_for_all_workers_and_no_change_is_none(stage):
    shown = stage.play(CHANGE)

    assert lines_of(shown.text)[:3] == [
        "Try it",
        "  changed   Change something  pod-w[0-7]",
        "pod-w[0-7] : ok=2 changed=1",
    ]


def test_a_play_without_changes_prints_only_its_recap(stage):
    shown = stage.play(CHANGE, "--start-at-task", "Leave something")

    assert lines_of(shown.text)[0] == "pod-w[0-7] : ok=1 changed=0"


def test_without_a_terminal_there_is_no_control_code(stage):
    shown = stage.play(CHANGE + FAIL)

    assert "\x1b" not in shown.text
    assert "\r" not in shown.text


def test_failures_are_last_complete_and_deduplicated(stage):
    shown = stage.play(FAIL)

    last = lines_of(shown.text)[-7:-1]
    assert shown.code == 2
    assert last[:4] == [
        "FAILED  pod-w[1,3]  See whether there is room",
        "  /opt has 2 GB free, 12 GB are needed: make room there, then setup.yml again",
        "FAILED  pod-w5  Ask a command",
        "  The command exited with a non-zero return code: no such chip",
    ]


def test_an_ignored_failure_is_not_reported(stage):
    shown = stage.play(
        "- name: Try\n  ansible.builtin.command: 'false'\n  ignore_errors: true\n"
        "  when: inventory_hostname == 'pod-w2'\n"
    )

    assert shown.code == 0
    assert "  ignored   Try  pod-w2" in lines_of(shown.text)
    assert "FAILED" not in shown.text


def test_a_loop_names_its_changed_items(stage):
    shown = stage.play(
        "- name: Put files\n  ansible.builtin.command: 'true'\n"
        "  changed_when: item != 'b'\n  loop: [a, b, c, d, e]\n"
    )

    assert "  changed   Put files (a, c, d, 1 more)  pod-w[0-7]" in lines_of(shown.text)


def test_check_mode_shows_what_would_change(stage):
    shown = stage.play(
        "- name: Write\n  ansible.builtin.copy:\n    content: x\n"
        f"    dest: {stage.directory}/new\n    mode: '0644'\n",
        "--check",
        "--diff",
    )

    said = lines_of(shown.text)
    assert "  would change  Write  pod-w[0-7]" in said
    assert said.count("+x") == 1


def test_output_of_a_debug_task_is_printed_unchanged(stage):
    shown = stage.play(
        "- name: Say\n  ansible.builtin.debug:\n    msg: |\n      one\n      two\n"
        "  run_once: true\n"
    )

    assert lines_of(shown.text)[1:3] == ["one", "two"]


def test_a_long_step_breaks_its_silence(stage):
    shown = stage.play(
        "- name: Wait long\n  ansible.builtin.command: sleep 11\n  changed_when: false\n"
        "  when: inventory_hostname == 'pod-w0'\n"
    )

    assert re.search(r"^  Wait long  pod 0/1|^  Wait long  pod", shown.text, re.MULTILINE)


def test_the_last_line_names_the_log_that_holds_everything(stage):
    shown = stage.play(CHANGE)

    [log] = (stage.directory / "logs").iterdir()
    assert lines_of(shown.text)[-1].endswith(str(log))
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert "ok pod-w3" in shown.log
    assert "task: Leave something" in shown.log


def test_a_secret_is_in_neither(stage):
    shown = stage.play(
        "- name: Use a secret\n  ansible.builtin.command: echo hunter2\n  no_log: true\n"
        "- name: Fail with a secret\n  ansible.builtin.command: sh -c 'echo hunter2; exit 1'\n"
        "  no_log: true\n"
    )

    assert shown.code == 2
    assert "hunter2" not in shown.text + shown.log


def test_with_v_the_lines_are_ansible_s_own(stage):
    shown = stage.play(CHANGE, "-v")

    assert "TASK [Change something]" in shown.text
    assert "changed: [pod-w0]" in shown.text
    assert "everything is in" in lines_of(shown.text)[-1]


def test_under_the_free_strategy_the_lines_are_ansible_s_own(stage):
    shown = stage.play(CHANGE, ANSIBLE_STRATEGY="free")

    assert "changed: [pod-w7]" in shown.text


def test_a_log_that_cannot_be_written_stops_nothing(stage):
    shown = stage.play(CHANGE, TPUFLEET_LOG_DIR="/proc/nowhere")

    assert shown.code == 0
    assert "TPUFLEET_LOG_DIR" in shown.text


def test_on_a_terminal_the_live_line_shows_the_task_and_is_gone_at_the_end(stage):
    shown = stage.play_on_terminal(
        "- name: Take a while\n  ansible.builtin.command: sleep 1\n  changed_when: false\n" + CHANGE
    )

    assert "Take a while  pod " in shown.text
    seen = screen_of(shown.text)
    assert seen[:3] == [
        "Try it",
        "  changed   Change something  pod-w[0-7]",
        "pod-w[0-7] : ok=3 changed=1",
    ]
    assert len([line for line in seen if line]) == 4


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
def test_a_warning_that_many_workers_give_is_one_and_names_them(stage):
    shown = stage.play(
        "- name: Warn\n  warns:\n"
        "    text: \"{{ 'own' if inventory_hostname == 'pod-w2' else 'the clock is late' }}\"\n"
    )

    said = " ".join(shown.text.split())
    assert "[WARNING]: pod-w[0-1,3-7]: the clock is late" in said
    assert "[WARNING]: pod-w2: own" in said
    assert said.count("WARNING") == 2


@pytest.mark.usefixtures("warns")
def test_a_warning_of_what_is_done_once_a_play_names_no_worker(stage):
    shown = stage.play("- name: Warn\n  warns:\n    text: the clock is late\n  run_once: true\n")

    assert "[WARNING]: the clock is late" in shown.text


def test_a_play_without_hosts_prints_nothing(stage):
    stage.more_plays = "- name: Left out\n  hosts: '!all'\n"
    shown = stage.play(CHANGE)

    assert "pod-w[0-7] : ok=2 changed=1" in shown.text
    assert "skipping" not in shown.text
    assert "play: Left out" in shown.log
