"""Rules for the plays of all playbooks."""

import re
from collections.abc import Iterable, Iterator

import pytest
import yaml

from harness.playbooks import ROOT

MODULES_WITH_FLEET_NAME = {
    f"tpufleet.core.{file.stem}"
    for file in (ROOT / "collections/ansible_collections/tpufleet/core/plugins/modules").glob(
        "*.py"
    )
    if re.search(r"^  fleet_name:", file.read_text(), re.MULTILINE)
}


def plays() -> Iterator:
    for file in sorted([*ROOT.glob("*.yml"), *(ROOT / "playbooks").rglob("*.yml")]):
        content = yaml.safe_load(file.read_text())
        for play in content if isinstance(content, list) else []:
            if "hosts" in play:
                yield pytest.param(play, id=f"{file.relative_to(ROOT)}: {play['name']}")


@pytest.mark.parametrize("play", [*plays()])
def test_a_play_of_the_published_collection_gathers_no_facts(play):
    """The collection has no ansible.cfg, and Ansible's default is to gather facts first."""
    assert play["gather_facts"] is False


def with_blocks(tasks: Iterable[dict]) -> Iterator[dict]:
    for task in tasks:
        yield task
        for key in ("block", "rescue", "always"):
            yield from with_blocks(task.get(key, ()))


def test_every_task_with_the_option_fleet_name_gets_the_name_of_the_inventory():
    """A task without it would work on the fleet that has the default name."""
    tasks = with_blocks(task for play in plays() for task in play.values[0].get("tasks", ()))
    names = {
        (module, task[module].get("fleet_name"))
        for task in tasks
        for module in MODULES_WITH_FLEET_NAME & task.keys()
    }
    assert names == {
        (module, "{{ fleet_name | default(omit) }}") for module in MODULES_WITH_FLEET_NAME
    }


def test_fetch_streams_archives_and_always_removes_them():
    plays = yaml.safe_load((ROOT / "playbooks/fetch.yml").read_text())
    [task] = [task for play in plays for task in play.get("tasks", ()) if "block" in task]
    assert task["block"][0]["become"] is False
    assert task["always"][0]["ansible.builtin.file"]["state"] == "absent"
