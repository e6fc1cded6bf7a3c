"""Commands in messages get the options with which the user has chosen an inventory or fleet."""

import shlex
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.view.suggested_commands import (
    fleet_options,
    with_fleet_options,
)
from hypothesis import given
from hypothesis import strategies as st

HERE = Path.cwd()
GCP = f"{HERE}/inventory/gcp"


@pytest.mark.parametrize(
    ("cli_args", "options"),
    [
        ({"inventory": [GCP]}, ""),
        ({"inventory": [f"{HERE}/inventory/local"]}, "-i inventory/local"),
        ({"inventory": ["/etc/my fleet"]}, "-i '/etc/my fleet'"),
        ({"inventory": ["a,b,"]}, "-i a,b,"),
        ({"inventory": [GCP], "extra_vars": ["run=x tpu=pod"]}, ""),
        ({"inventory": [GCP], "extra_vars": ["run=x fleet_state=/s"]}, "-e fleet_state=/s"),
        ({"inventory": [GCP], "extra_vars": ["@mine.yml", '{"a": 1}']}, "-e @mine.yml"),
        (
            {"inventory": [GCP], "vault_ids": ["me@prompt"], "vault_password_files": ["/my key"]},
            "--vault-id me@prompt --vault-password-file '/my key'",
        ),
    ],
)
def test_fleet_options_keeps_only_options_for_the_inventory_and_fleet(cli_args, options):
    assert fleet_options(cli_args, [GCP]) == options


def test_every_command_in_a_text_gets_the_fleet_options():
    text = (
        "pod-w0: not set up. Run: ansible-playbook setup.yml --limit pod-w0, "
        "or ansible-playbook playbooks/delete.yml -e tpu=pod"
    )
    assert with_fleet_options(text, "-i inventory/local") == (
        "pod-w0: not set up. Run: ansible-playbook -i inventory/local setup.yml --limit pod-w0, "
        "or ansible-playbook -i inventory/local playbooks/delete.yml -e tpu=pod"
    )


@pytest.mark.parametrize(
    "command",
    [
        "ansible-inventory --graph",
        "ansible pod-w0 -b -a 'kill 1'",
        "ansible WORKER -b -m reboot",
        "ansible pod-w0 -a 'free -m'",
    ],
)
def test_commands_other_than_playbooks_get_the_fleet_options_too(command):
    program, arguments = command.split(" ", 1)
    assert with_fleet_options(f"See why: {command}", "-i mine") == (
        f"See why: {program} -i mine {arguments}"
    )


def test_other_text_is_not_changed():
    for text in (
        "ansible-playbook is missing",
        "ansible-playbook -i mine setup.yml",
        "ansible -i mine pod-w0 -b -m reboot",
        "the Python that runs ansible has no requests",
        "",
    ):
        assert with_fleet_options(text, "-i inventory/local") == text


@given(st.text(min_size=1).filter(lambda path: "," not in path and "\0" not in path))
def test_an_inventory_of_any_name_is_quoted_as_one_shell_argument(path):
    line = with_fleet_options(
        "ansible-playbook setup.yml", fleet_options({"inventory": [path]}, [GCP])
    )
    assert shlex.split(line) == ["ansible-playbook", "-i", path, "setup.yml"]


def test_a_failure_suggests_the_inventory_that_was_used(stage):
    tasks = """
- name: Look for the setup stamp
  ansible.builtin.fail:
    msg: "not set up. Run: ansible-playbook setup.yml --limit {{ inventory_hostname }}"
  when: inventory_hostname == 'pod-w1'
- name: Say what comes next
  ansible.builtin.debug:
    msg: "Then run: ansible-playbook train.yml"
  run_once: true
"""
    inventory = stage.directory / "other.ini"
    inventory.write_text((stage.directory / "hosts.ini").read_text())

    output = stage.play(tasks, "-i", str(inventory), "-e", "fleet_state=/state run=mine").text

    assert (
        f"ansible-playbook -i {inventory} -e fleet_state=/state setup.yml --limit pod-w1" in output
    )
    assert f"ansible-playbook -i {inventory} -e fleet_state=/state train.yml" in output
