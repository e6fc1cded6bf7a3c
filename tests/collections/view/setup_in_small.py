"""A cheap copy of setup.yml: the tasks have their real names, but each only reports a change."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from localcloud.place import PROJECT_ROOT

ROLES = PROJECT_ROOT / "roles"
QUIET = {
    "ansible.builtin.assert",
    "ansible.builtin.debug",
    "ansible.builtin.fail",
    "ansible.builtin.meta",
    "ansible.builtin.set_fact",
    "ansible.builtin.setup",
    "ansible.builtin.slurp",
    "ansible.builtin.stat",
}
OFF_BY_DEFAULT = {"users", "mounts", "devtools"}
NOT_TAKEN = {"absent.yml", "slice.yml"}
"""Task files that run only if the inventory or the command line asks for them."""
BRANCHES = ("ansible.builtin.import_tasks", "ansible.builtin.include_tasks")


def roles_of_setup() -> list[str]:
    """Return the roles that setup.yml runs on a worker with default settings."""
    plays = yaml.safe_load((PROJECT_ROOT / "playbooks/setup.yml").read_text())
    [roles] = [play["roles"] for play in plays if play.get("roles")]
    return [role["role"] for role in roles if role["role"] not in OFF_BY_DEFAULT]


def changing(role: str) -> list[str]:
    """Return the names of the tasks and handlers of a role that may change something."""
    files = [ROLES / role / "tasks/main.yml", ROLES / role / "handlers/main.yml"]
    return [name for file in files if file.exists() for name in _names(file)]


def _names(file: Path) -> Iterator[str]:
    yield from _of_tasks(yaml.safe_load(file.read_text()) or [], file.parent)


def _of_tasks(tasks: list[dict[str, Any]], folder: Path) -> Iterator[str]:
    for task in tasks:
        branch = next((task[key] for key in BRANCHES if key in task), None)
        if "block" in task:
            yield from _of_tasks(task["block"], folder)
        elif branch:
            if branch not in NOT_TAKEN:
                yield from _names(folder / branch)
        elif not QUIET & set(task) and task.get("changed_when") is not False:
            yield task["name"]


def write_roles(folder: Path) -> None:
    """Write a copy of the roles into a folder, in which each task only reports a change.

    As on real workers, a third of the tasks run only on the leader or only on the other workers.
    """
    for role in roles_of_setup():
        tasks = [
            {
                "name": name,
                "ansible.builtin.assert": {"that": [True], "quiet": True},
                "changed_when": True,
                **({"when": WHO[number % 6]} if number % 6 in WHO else {}),
            }
            for number, name in enumerate(changing(role))
        ]
        place = folder / "roles" / role / "tasks"
        place.mkdir(parents=True)
        (place / "main.yml").write_text(yaml.safe_dump(tasks, sort_keys=False))


WHO = {
    1: "inventory_hostname is match('.*-w0$')",
    4: "inventory_hostname is not match('.*-w0$')",
}
