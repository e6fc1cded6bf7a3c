"""The role users: which accounts it accepts, who may use sudo, and where its tasks write."""

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


def test_sudo_may_be_a_word_for_a_boolean(tmp_path):
    sudoers = tmp_path / "sudoers"
    template = {"src": str(ROOT / "roles/users/templates/sudoers.j2"), "dest": str(sudoers)}
    sudo = {"ada": "false", "bob": "no", "cyd": False, "dan": "yes"}
    accounts = [{"name": name, "sudo": value} for name, value in sudo.items()]

    tasks = [{"ansible.builtin.template": template}]
    run_tasks(tmp_path, tasks, vars={"users_accounts": accounts})

    lines = [line for line in sudoers.read_text().splitlines() if "NOPASSWD" in line]
    assert [line.split()[0] for line in lines] == ["dan"]


def test_a_user_with_an_invalid_or_repeated_name_or_no_valid_public_key_is_refused(tmp_path):
    names = ("ada", "ada", "tpufleet-peer", "root", "bob")
    accounts = [{"name": name, "keys": [KEY]} for name in names]
    accounts.append({"name": "eve", "keys": [KEY, "AAAA"]})
    checks = yaml.safe_load((ROOT / "roles/users/tasks/main.yml").read_text())[:2]
    tasks = [check | {"ignore_errors": True} for check in checks]
    role_variables = str(ROOT / "roles/users/vars/main.yml")
    variables = {"users_accounts": accounts}

    result = run_tasks(tmp_path, tasks, vars=variables, vars_files=[role_variables])

    assert result.stdout.count("...ignoring") == len(checks)
    output = flat(result)
    for name in ("ada", "tpufleet-peer", "root"):
        assert f"users_accounts: {name}: expected a name of at most 31 lower-case" in output
    assert "users_accounts: eve: expected public ssh keys (1 of 2 do not look like one)" in output
    assert output.count("ok: [localhost] => (item=bob)") == len(checks)
