"""Rules for the plays of all playbooks."""

import re
from collections.abc import Iterator

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


@pytest.mark.parametrize("play", [*plays()])
def test_no_task_takes_the_resources_of_another_fleet_for_its_own(play):
    """A task that omits the option fleet_name works on the fleet with the default name."""
    for task in play.get("tasks", ()):
        for module in MODULES_WITH_FLEET_NAME & task.keys():
            assert task[module]["fleet_name"] == "{{ fleet_name | default(omit) }}"


def test_fetch_streams_archives_and_always_removes_them():
    plays = yaml.safe_load((ROOT / "playbooks/fetch.yml").read_text())
    [task] = [task for play in plays for task in play.get("tasks", ()) if "block" in task]
    assert task["block"][0]["become"] is False
    assert task["always"][0]["ansible.builtin.file"]["state"] == "absent"
