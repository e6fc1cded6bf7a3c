"""A repeatedly interrupted setup.yml ends in the same state as an undisturbed one."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from harness.fleet import Fleet
from harness.own_cloud import own_cloud
from harness.process_tree import kill_tree
from localcloud.place import PROJECT_ROOT

pytestmark = [pytest.mark.machines, pytest.mark.long]
CUT = "fleet_ssh : Create this worker's ssh key"
OFF = "jax : Install the Python environment and prove that it works"
"""The tasks at which the second worker loses its network or its power."""
POINTS = (
    "base : Install base packages",
    "base : Configure limits, logs and the journal",
    "base : Map the hostname to the internal address",
    CUT,
    "fleet_ssh : Configure the ssh connection to the leader",
    "python : Install uv and Python on the leaders",
    "jax : Install the Python environment on the leaders",
    OFF,
    "firewall : Load the rules",
    "firewall : Save the confirmed rules",
)
"""At the other tasks the controller is killed."""
if not os.environ.get("TPUFLEET_ALL_POINTS"):
    POINTS = (POINTS[0], POINTS[1], CUT, POINTS[6], OFF, POINTS[8])


@pytest.fixture(scope="module")
def fleet():
    with own_cloud("interrupted") as place:
        fleet = Fleet(place)
        fleet.must_play("playbooks/create.yml")
        yield fleet


@pytest.fixture(scope="module")
def controller(fleet, tmp_path_factory):
    """The environment of setup, in which ssh detects an unreachable worker quickly."""
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
    """Start setup in its own session."""
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
    """Wait until a task has run for a moment; return whether it started."""
    for line in play.stdout:
        if line.startswith(f"TASK [{task}"):
            time.sleep(0.5)
            return True
    return False


def killed_at(controller, task):
    """Start setup and kill the controller at a task."""
    with begun(controller) as play:
        assert reached(play, task), task
        kill_tree(play.pid)


def lost_at(controller, task, fleet, fault):
    """Start setup, inject a fault into the second worker, and return setup's output."""
    with begun(controller) as play:
        assert reached(play, task), task
        inject(fleet, fault)
        printed = play.stdout.read()
    assert play.returncode != 0
    return printed


def inject(fleet, fault):
    """Inject a fault of the local cloud into the second worker, or clear it."""
    name = f"--name={fleet.place.name}"
    words = [sys.executable, "-m", "localcloud", name, "fault", "worker", "demo-w1", fault]
    subprocess.run(words, cwd=PROJECT_ROOT, check=True, stdout=subprocess.DEVNULL)


def answers(fleet):
    """Wait until the second worker answers ssh again."""
    words = ["ansible", "demo-w1", "-m", "ansible.builtin.wait_for_connection", "-a", "timeout=120"]
    where = {"ANSIBLE_INVENTORY": "inventory/local", "TPUFLEET_LOCALCLOUD": fleet.place.name}
    subprocess.run(words, cwd=PROJECT_ROOT, env={**os.environ, **where}, check=True)


def stamps(fleet):
    """Return the setup stamps by worker."""
    reply = {}
    for worker in (0, 1):
        try:
            reply[worker] = json.loads(fleet.read(worker, "/opt/tpufleet/ready.json"))
        except FileNotFoundError:
            continue
    return reply


def test_an_interrupted_setup_leaves_no_stamp_and_the_next_one_writes_it(fleet, controller):
    for point in POINTS:
        if point in (CUT, OFF):
            bad, good = ("cut", "reconnect") if point == CUT else ("power-off", "power-on")
            printed = lost_at(controller, point, fleet, bad)
            # The leader's setup is completed, and the failed worker is reported.
            assert "demo-w1" in printed.rpartition("PLAY RECAP")[2]
            assert re.search(r"demo-w1 .*(unreachable|failed)=1", printed)
            assert list(stamps(fleet)) == [0]
            inject(fleet, good)
            answers(fleet)
            fleet.on("demo-w0", "rm", "/opt/tpufleet/ready.json")
        else:
            killed_at(controller, point)
            assert stamps(fleet) == {}
    fleet.must_play("setup.yml")
    assert all(stamp["environment"] for stamp in stamps(fleet).values())
    assert list(stamps(fleet)) == [0, 1]


def test_a_renewed_setup_changes_nothing_else(fleet):
    before = stamps(fleet)
    again = fleet.must_play("setup.yml", "-e", "renew=true")
    # Each worker's stamp is removed and written again.
    assert set(re.findall(r"changed=(\d+)", again.output)) == {"2"}, again.output[-4000:]
    assert stamps(fleet) == before


def test_a_worker_with_a_valid_stamp_is_skipped(fleet):
    assert fleet.must_play("setup.yml").changed() == 0
