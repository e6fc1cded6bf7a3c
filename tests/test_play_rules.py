"""Rules for the plays of all playbooks."""

from collections.abc import Iterator

import pytest
import yaml

from harness.playbooks import ROOT


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


def test_fetch_streams_archives_and_always_removes_them():
    plays = yaml.safe_load((ROOT / "playbooks/fetch.yml").read_text())
    [task] = [task for play in plays for task in play.get("tasks", ()) if "block" in task]
    assert task["block"][0]["become"] is False
    assert task["always"][0]["ansible.builtin.file"]["state"] == "absent"
