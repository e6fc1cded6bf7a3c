"""The role users: the directories that its tasks write to."""

import yaml

from harness.playbooks import ROOT

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
    """Return the tasks and those in their blocks."""
    return [item for task in tasks for item in (task, *every(task.get("block", [])))]
