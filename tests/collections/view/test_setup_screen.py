"""The changes that setup.yml reports for many workers fit on one screen, even without a terminal.

The test runs a copy of setup.yml whose tasks have their real names, but each only reports a change.
More workers add no lines, because the view prints one line for all that report the same change.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcloud.local_cloud import PROJECT_ROOT
from tests.collections.view.conftest import PlayOutput, Stage

ROLES = PROJECT_ROOT / "roles"
OFF_BY_DEFAULT = {"users", "mounts", "devtools"}
QUIET = {
    *("ansible.builtin.assert", "ansible.builtin.debug", "ansible.builtin.fail"),
    *("ansible.builtin.meta", "ansible.builtin.set_fact", "ansible.builtin.setup"),
    *("ansible.builtin.slurp", "ansible.builtin.stat"),
}
BRANCHES = ("ansible.builtin.import_tasks", "ansible.builtin.include_tasks")
NOT_TAKEN = {"absent.yml", "slice.yml"}
"""Task files that run only if the inventory or the command line asks for them."""
#: As on real workers, a third of the tasks run only on the leader or only on the other workers.
CONDITIONS = {
    1: "inventory_hostname is match('.*-w0$')",
    4: "inventory_hostname is not match('.*-w0$')",
}
ONE_SCREEN = 40
SLOW = "- name: Wait as for a download\n  ansible.builtin.pause:\n    seconds: 11\n"
PROGRESS = r"  Wait as for a download  pod  \d+ s"


def roles_of_setup() -> list[str]:
    """Return the names of the roles that setup.yml plays on a worker with default settings."""
    plays = yaml.safe_load((PROJECT_ROOT / "playbooks/setup.yml").read_text())
    [roles] = [play["roles"] for play in plays if play.get("roles")]
    return [role["role"] for role in roles if role["role"] not in OFF_BY_DEFAULT]


def changing_tasks(role: str) -> list[str]:
    """Return the names of the tasks and handlers of a role that may change something."""
    files = [ROLES / role / "tasks/main.yml", ROLES / role / "handlers/main.yml"]
    return [name for file in files if file.exists() for name in task_names(file)]


def task_names(file: Path) -> Iterator[str]:
    """Yield the names of tasks that may change something, in a file and the files it includes."""
    tasks: list[dict[str, Any]] = yaml.safe_load(file.read_text()) or []
    while tasks:
        task = tasks.pop(0)
        branch = next((task[key] for key in BRANCHES if key in task), None)
        if "block" in task:
            tasks = task["block"] + tasks
        elif branch:
            if branch not in NOT_TAKEN:
                yield from task_names(file.with_name(branch))
        elif not QUIET & set(task) and task.get("changed_when") is not False:
            yield task["name"]


def write_roles(folder: Path) -> None:
    """Copy the roles to a folder, each task replaced by one that only reports a change."""
    for role in roles_of_setup():
        tasks = [
            {
                "name": name,
                "ansible.builtin.assert": {"that": [True], "quiet": True},
                "changed_when": True,
                **({"when": CONDITIONS[number % 6]} if number % 6 in CONDITIONS else {}),
            }
            for number, name in enumerate(changing_tasks(role))
        ]
        directory = folder / "roles" / role / "tasks"
        directory.mkdir(parents=True)
        (directory / "main.yml").write_text(yaml.safe_dump(tasks, sort_keys=False))


@pytest.fixture(scope="module")
def setup(tmp_path_factory) -> PlayOutput:
    """Output of all roles of setup.yml for 2 hosts, both of which are this computer."""
    stage = Stage(tmp_path_factory.mktemp("setup"))
    write_roles(stage.directory)
    roles = "".join(f"- ansible.builtin.import_role: {{name: {r}}}\n" for r in roles_of_setup())
    return stage.play(SLOW + roles, "--limit=pod-w0,pod-w1")


def test_setup_of_bare_workers_fits_one_screen(setup: PlayOutput):
    lines = setup.text.splitlines()

    assert setup.code == 0, setup.text
    assert len(lines) <= ONE_SCREEN, setup.text
    assert [line for line in lines[:-1] if len(line) > 120] == []


def test_the_screen_shows_every_change(setup: PlayOutput):
    names = [name for role in roles_of_setup() for name in changing_tasks(role)]

    assert all(changing_tasks(role) for role in ("base", "fleet_ssh", "jax", "run", "firewall"))
    assert [name for name in names if name not in setup.text] == []
    assert "  pod-w[0-1]" in setup.text
    assert "  pod-w1" in setup.text


def test_a_long_task_shows_progress_on_one_line(setup: PlayOutput):
    [progress_line] = [line for line in setup.text.splitlines() if "Wait as for" in line]

    assert re.fullmatch(rf"{PROGRESS}(, \d+ s)*", progress_line)


def test_ci_output_has_complete_lines(stage: Stage):
    output = stage.play(SLOW, "--limit=pod-w0", CI="true")

    lines = [line for line in output.text.splitlines() if "Wait as for" in line]
    assert lines
    assert all(re.fullmatch(PROGRESS, line) for line in lines)
