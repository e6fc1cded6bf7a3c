"""The changes that setup.yml reports for 12 workers fit on one screen, even without a terminal."""

import re

import pytest

from tests.collections.view.conftest import Shown, Stage
from tests.collections.view.setup_in_small import changing, roles_of_setup, write_roles

ONE_SCREEN = 40
SLOW = "- name: Wait as for a download\n  ansible.builtin.pause:\n    seconds: 11\n"
PROGRESS = r"  Wait as for a download  pod  \d+ s"


@pytest.fixture(scope="module")
def setup(tmp_path_factory) -> Shown:
    """Output of all roles of setup.yml for 12 hosts, all of which are this computer."""
    stage = Stage(tmp_path_factory.mktemp("setup"))
    (stage.directory / "hosts.ini").write_text("pod-w[0:11] ansible_connection=local\n")
    write_roles(stage.directory)
    roles = "".join(f"- ansible.builtin.import_role: {{name: {r}}}\n" for r in roles_of_setup())
    return stage.play(SLOW + roles)


def test_setup_of_12_bare_workers_fits_one_screen(setup: Shown):
    lines = setup.text.splitlines()

    assert setup.code == 0, setup.text
    assert len(lines) <= ONE_SCREEN, setup.text
    assert [line for line in lines[:-1] if len(line) > 120] == []


def test_the_screen_shows_every_change(setup: Shown):
    everything = [name for role in roles_of_setup() for name in changing(role)]

    assert all(changing(role) for role in ("base", "fleet_ssh", "jax", "run", "firewall"))
    assert [name for name in everything if name not in setup.text] == []
    assert "pod-w[0-11]" in setup.text
    assert "pod-w[1-11]" in setup.text


def test_a_long_task_shows_progress_on_one_line(setup: Shown):
    [waited] = [line for line in setup.text.splitlines() if "Wait as for" in line]

    assert re.fullmatch(rf"{PROGRESS}(, \d+ s)*", waited)


def test_ci_output_has_complete_lines(stage: Stage):
    shown = stage.play(SLOW, CI="true")

    lines = [line for line in shown.text.splitlines() if "Wait as for" in line]
    assert lines
    assert all(re.fullmatch(PROGRESS, line) for line in lines)
