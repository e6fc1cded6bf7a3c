"""Workers with older Debian releases, which have an older systemd and an older Python.

Their Python is too old for JAX, and the tests have no mirror with a newer one. Setup without JAX
works; setup with JAX reports the too old Python on one line.
"""

import platform

import pytest

from harness.fleet import Fleet
from harness.own_cloud import own_cloud

pytestmark = [
    pytest.mark.machines,
    pytest.mark.long,
    pytest.mark.skipif(
        platform.freedesktop_os_release()["ID"] != "debian",
        reason="only a Debian host builds other Debians",
    ),
]
PYTHON, SYSTEMD = {"bullseye": "3.9.", "bookworm": "3.11."}, {"bullseye": "247", "bookworm": "252"}
WITHOUT_JAX = ("--skip-tags", "python,jax,setup_stamp")


@pytest.fixture(scope="module", params=sorted(PYTHON))
def fleet(request):
    with own_cloud(request.param, suite=request.param) as cloud:
        fleet = Fleet(cloud)
        fleet.must_play("playbooks/create.yml")
        yield fleet


@pytest.fixture
def suite(fleet):
    return fleet.cloud.name.split("-")[1]


def test_the_workers_have_the_requested_release(fleet, suite):
    text = fleet.on("demo-w0", "python3", "--version") + fleet.on(
        "demo-w0", "systemctl", "--version"
    )
    assert f"Python {PYTHON[suite]}" in text
    assert f"systemd {SYSTEMD[suite]}" in text


def test_check_mode_shows_the_changes_on_a_bare_worker(fleet):
    assert fleet.must_play("setup.yml", "--check", *WITHOUT_JAX).changed() > 0


def test_setup_without_jax_is_idempotent(fleet):
    assert fleet.must_play("setup.yml", *WITHOUT_JAX).changed() > 0
    assert fleet.must_play("setup.yml", *WITHOUT_JAX).changed() == 0


def test_the_firewall_rules_are_loaded(fleet):
    assert "tpufleet" in fleet.on("demo-w0", "nft", "list", "tables")


def test_a_too_old_python_is_reported_on_one_line_with_the_fix(fleet):
    played = fleet.play("setup.yml", "--tags", "python", "-e", "python_mirror=http://127.0.0.1:9/")
    assert played.code
    assert "system's Python is too old" in " ".join(played.output.split())
    assert "Set python_mirror" in played.output
