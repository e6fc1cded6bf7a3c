"""The role users: which accounts it accepts, who may use sudo, and where its tasks write."""

import pytest
import yaml

from harness.playbooks import ROOT, flat
from tests.collections.role_templates import run_tasks

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGBm ada@home"
WRITING = ("file", "copy", "template", "lineinfile")


def test_the_role_writes_only_below_etc_where_users_cannot_create_links():
    tasks = yaml.safe_load((ROOT / "roles/users/tasks/main.yml").read_text())
    keys = yaml.safe_load((ROOT / "roles/users/vars/main.yml").read_text())["__users_keys"]
    files = [
        str(task[module].get("dest") or task[module].get("path"))
        for task in every(tasks)
        for module in (f"ansible.builtin.{name}" for name in WRITING)
        if module in task
    ]

    assert files
    for path in files:
        assert path.replace("{{ __users_keys }}", keys).startswith("/etc/")


def every(tasks: list[dict]) -> list[dict]:
    """Return the tasks, including the tasks in their blocks."""
    return [item for task in tasks for item in (task, *every(task.get("block", [])))]


@pytest.mark.parametrize(
    ("sudo", "is_allowed"), [("false", False), ("no", False), (False, False), ("yes", True)]
)
def test_sudo_may_be_a_word_for_a_boolean(tmp_path, sudo, is_allowed):
    sudoers = tmp_path / "sudoers"
    template = {"src": str(ROOT / "roles/users/templates/sudoers.j2"), "dest": str(sudoers)}
    accounts = {"users_accounts": [{"name": "ada", "sudo": sudo}]}

    result = run_tasks(tmp_path, [{"ansible.builtin.template": template}], vars=accounts)

    assert result.returncode == 0, flat(result)
    assert ("NOPASSWD" in sudoers.read_text()) == is_allowed


NAME = "expected a name of at most 31 lower-case"
KEYS = "expected public ssh keys (key 2 of 2 is not one)"


@pytest.mark.parametrize(
    ("names", "key", "error"),
    [
        (["ada", "ada"], KEY, NAME),
        (["tpufleet-peer"], KEY, NAME),
        (["root"], KEY, NAME),
        (["eve"], "AAAA", KEYS),
    ],
)
def test_a_user_with_an_invalid_or_repeated_name_or_no_valid_public_key_is_refused(
    tmp_path, names, key, error
):
    checks = yaml.safe_load((ROOT / "roles/users/tasks/main.yml").read_text())[:2]
    accounts = [{"name": name, "keys": [KEY, key]} for name in names]
    role_variables = str(ROOT / "roles/users/vars/main.yml")
    variables = {"users_accounts": accounts}

    result = run_tasks(tmp_path, checks, vars=variables, vars_files=[role_variables])

    assert result.returncode != 0
    assert f"users_accounts: {names[0]}: {error}" in flat(result)
