"""setup.yml, interrupted again and again, ends where an undisturbed one does."""

import json
import os
import subprocess
import sys
import time

import pytest

from harness.fleet import Fleet
from harness.process_tree import kill_tree
from localcloud import cloud
from localcloud.place import PROJECT_ROOT, Place

pytestmark = [
    pytest.mark.machines,
    pytest.mark.skipif(not os.environ.get("TPUFLEET_LONG"), reason="long: make test-long"),
]
CUT = "fleet_ssh : Have a key of this worker's own"
OFF = "jax : Have the Python environment that the lock file names"
"""The tasks at whose beginning the second worker loses its network, and its power."""
POINTS = (
    "base : Have the packages",
    "base : Have the trainer's user",
    "users : Have the people of the list",
    CUT,
    "fleet_ssh : Tell the worker where its leader is",
    "python : Have uv and a Python that is new enough on the leaders",
    "jax : Have the environment on the leaders",
    OFF,
    "run : Have the unit that a run is",
    "firewall : Let in ssh from outside",
)
"""At the others the controller is killed: at every piece of work, from the packages to the last."""
if not os.environ.get("TPUFLEET_ALL_POINTS"):
    POINTS = (POINTS[0], POINTS[1], CUT, POINTS[6], OFF, POINTS[8])


@pytest.fixture(scope="module")
def fleet():
    place = Place.of(f"test-interrupted-{os.getpid()}")
    cloud.up(place, port=None, subnet=None, say=print)
    fleet = Fleet(place)
    fleet.must_play("playbooks/create.yml")
    yield fleet
    cloud.down(place, say=print)


@pytest.fixture(scope="module")
def controller(fleet, tmp_path_factory):
    """The environment of setup's own process: ssh sees soon that nobody answers any more."""
    soon = "-C -o ControlMaster=auto -o ControlPersist=600s"
    return {
        **os.environ,
        "ANSIBLE_INVENTORY": "inventory/local",
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_SSH_ARGS": f"{soon} -o ServerAliveInterval=2 -o ServerAliveCountMax=3",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path_factory.mktemp("cp")),
        "PYTHONUNBUFFERED": "1",
        "TPUFLEET_LOCALCLOUD": fleet.place.name,
    }


def begun(controller):
    """Begin setup in a session of its own."""
    return subprocess.Popen(
        ["ansible-playbook", "setup.yml"],
        cwd=PROJECT_ROOT,
        env=controller,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def reached(play, task):
    """Wait until a task has begun, and a moment of its work; tell whether it came to that."""
    for line in play.stdout:
        if line.startswith(f"TASK [{task}"):
            time.sleep(0.5)
            return True
    return False


def killed_at(controller, task):
    """Begin setup, and kill the controller at a task."""
    with begun(controller) as play:
        assert reached(play, task), task
        kill_tree(play.pid)


def lost_at(controller, task, fleet, trouble):
    """Begin setup, and let a trouble come over the second worker; give what setup then says."""
    with begun(controller) as play:
        assert reached(play, task), task
        afflict(fleet, trouble)
        said = play.stdout.read()
    assert play.returncode != 0
    return said


def afflict(fleet, trouble):
    """Let a trouble of the local cloud's come over the second worker, or go."""
    name = f"--name={fleet.place.name}"
    words = [sys.executable, "-m", "localcloud", name, "fault", "worker", "demo-w1", trouble]
    subprocess.run(words, cwd=PROJECT_ROOT, check=True, stdout=subprocess.DEVNULL)


def answers(fleet):
    """Wait until the second worker lets ssh in again."""
    words = ["ansible", "demo-w1", "-m", "ansible.builtin.wait_for_connection", "-a", "timeout=120"]
    where = {"ANSIBLE_INVENTORY": "inventory/local", "TPUFLEET_LOCALCLOUD": fleet.place.name}
    subprocess.run(words, cwd=PROJECT_ROOT, env={**os.environ, **where}, check=True)


def certified(fleet):
    """Give the certificates that there are, by worker."""
    told = {}
    for worker in (0, 1):
        try:
            told[worker] = json.loads(fleet.read(worker, "/opt/tpufleet/ready.json"))
        except FileNotFoundError:
            continue
    return told


def test_an_interrupted_setup_leaves_no_certificate_and_then_ends_certified(fleet, controller):
    for point in POINTS:
        if point in (CUT, OFF):
            bad, good = ("cut", "reconnect") if point == CUT else ("power-off", "power-on")
            said = lost_at(controller, point, fleet, bad)
            # The leader's setup went on to its end, and the one that is not ready is named.
            assert "not ready: demo-w1" in " ".join(said.split())
            assert list(certified(fleet)) == [0]
            afflict(fleet, good)
            answers(fleet)
            fleet.on("demo-w0", "rm", "/opt/tpufleet/ready.json")
        else:
            killed_at(controller, point)
            assert certified(fleet) == {}
    fleet.must_play("setup.yml")
    assert all(certificate["environment"] for certificate in certified(fleet).values())
    assert list(certified(fleet)) == [0, 1]


def test_all_its_work_done_again_finds_nothing_left_to_do(fleet):
    before = certified(fleet)
    again = fleet.must_play("setup.yml", "-e", "renew=true")
    # Each worker's certificate goes and comes back, which the recap says once for both.
    assert again.changed() == 2, again.said[-4000:]
    assert certified(fleet) == before


def test_a_ready_worker_is_left_alone(fleet):
    assert fleet.must_play("setup.yml").changed() == 0
