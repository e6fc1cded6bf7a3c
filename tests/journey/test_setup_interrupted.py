"""setup.yml, killed again and again at ever later points, ends where an undisturbed one does."""

import json
import os
import signal
import subprocess

import pytest

from localcloud import cloud
from localcloud.place import PROJECT_ROOT, Place
from tests.journey.fleet import Fleet

pytestmark = pytest.mark.machines
POINTS = range(3, 33, 3)
"""After how many tasks have begun the controller is killed: ten points, the proof of JAX among
them."""


@pytest.fixture(scope="module")
def fleet():
    place = Place.of(f"test-interrupted-{os.getpid()}")
    cloud.up(place, port=None, subnet=None, say=print)
    fleet = Fleet(place)
    fleet.must_play("playbooks/create.yml")
    yield fleet
    cloud.down(place, say=print)


def killed_after(fleet, tasks):
    """Begin setup, and kill the controller once so many tasks have begun; tell whether it was."""
    environment = {
        **os.environ,
        "ANSIBLE_INVENTORY": "inventory/local",
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        "ANSIBLE_FORCE_COLOR": "0",
        "PYTHONUNBUFFERED": "1",
        "TPUFLEET_LOCALCLOUD": fleet.place.name,
    }
    with subprocess.Popen(
        ["ansible-playbook", "setup.yml"],
        cwd=PROJECT_ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as play:
        begun = 0
        for line in play.stdout:
            begun += line.startswith(("TASK [", "RUNNING HANDLER ["))
            if begun >= tasks:
                os.killpg(play.pid, signal.SIGKILL)
                return True
    return False


def certificates(fleet):
    """Give the certificates of both workers."""
    return [json.loads(fleet.read(worker, "/opt/tpufleet/ready.json")) for worker in (0, 1)]


def test_a_setup_killed_at_ten_points_has_no_certificate_and_then_ends_certified(fleet):
    for point in POINTS:
        assert killed_after(fleet, point)
        for worker in (0, 1):
            with pytest.raises(FileNotFoundError):
                fleet.read(worker, "/opt/tpufleet/ready.json")
    fleet.must_play("setup.yml")
    assert all(certificate["environment"] for certificate in certificates(fleet))


def test_all_its_work_done_again_finds_nothing_left_to_do(fleet):
    before = certificates(fleet)
    again = fleet.must_play("setup.yml", "-e", "renew=true")
    # Each worker's certificate goes and comes back: nothing else does.
    assert again.changed() == 4, again.said[-4000:]
    assert certificates(fleet) == before


def test_a_ready_worker_is_left_alone(fleet):
    assert fleet.must_play("setup.yml").changed() == 0
