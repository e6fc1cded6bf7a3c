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
from localcloud.local_cloud import PROJECT_ROOT

pytestmark = [pytest.mark.machines, pytest.mark.long]
CUT = "fleet_ssh : Create this worker's ssh key"
OFF = "jax : Install the Python environment and prove that it works"
"""At ``CUT`` the second worker loses its network, at ``OFF`` its power."""
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
"""The tasks at which setup is interrupted: at CUT and OFF by a fault of the second worker, at all
others by killing ansible-playbook."""
if not os.environ.get("TPUFLEET_ALL_POINTS"):
    POINTS = (POINTS[0], POINTS[1], CUT, POINTS[6], OFF, POINTS[8])


@pytest.fixture(scope="module")
def fleet():
    with own_cloud("interrupted") as cloud:
        fleet = Fleet(cloud)
        fleet.must_play("playbooks/create.yml")
        yield fleet


@pytest.fixture(scope="module")
def controller(fleet, tmp_path_factory):
    """Environment variables for setup.yml. They make ssh detect an unreachable worker quickly."""
    reuse = "-C -o ControlMaster=auto -o ControlPersist=600s"
    return {
        **os.environ,
        "ANSIBLE_INVENTORY": "inventory/local",
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_SSH_ARGS": f"{reuse} -o ServerAliveInterval=2 -o ServerAliveCountMax=3",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path_factory.mktemp("cp")),
        "PYTHONUNBUFFERED": "1",
        "TPUFLEET_LOCALCLOUD": fleet.cloud.name,
    }


def start_setup(controller):
    """Start setup.yml in a new session; return its process."""
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


def wait_for_task(play, task):
    """Wait until a task has run for half a second; return False if it did not start."""
    for line in play.stdout:
        if line.startswith(f"TASK [{task}"):
            time.sleep(0.5)
            return True
    return False


def kill_at(controller, task):
    """Start setup.yml, and kill it with all its child processes during a task."""
    with start_setup(controller) as play:
        assert wait_for_task(play, task), task
        kill_tree(play.pid)


def lose_worker_at(controller, task, fleet, fault):
    """Start setup.yml, inject a fault into the second worker during a task; return the output."""
    with start_setup(controller) as play:
        assert wait_for_task(play, task), task
        inject(fleet, fault)
        output = play.stdout.read()
    assert play.returncode != 0
    return output


def inject(fleet, fault):
    """Inject a fault of the local cloud into the second worker, or clear it."""
    name = f"--name={fleet.cloud.name}"
    command = [sys.executable, "-m", "localcloud", name, "fault", "worker", "demo-w1", fault]
    subprocess.run(command, cwd=PROJECT_ROOT, check=True, stdout=subprocess.DEVNULL)


def wait_for_ssh(fleet):
    """Wait until ssh to the second worker works again."""
    command = [
        "ansible",
        "demo-w1",
        "-m",
        "ansible.builtin.wait_for_connection",
        "-a",
        "timeout=120",
    ]
    variables = {"ANSIBLE_INVENTORY": "inventory/local", "TPUFLEET_LOCALCLOUD": fleet.cloud.name}
    subprocess.run(command, cwd=PROJECT_ROOT, env={**os.environ, **variables}, check=True)


def stamps(fleet):
    """Return the existing setup stamps, by the worker's number."""
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
            fault, recovery = ("cut", "reconnect") if point == CUT else ("power-off", "power-on")
            output = lose_worker_at(controller, point, fleet, fault)
            # Setup succeeds on the leader, demo-w0, and reports that demo-w1 failed.
            assert "demo-w1" in output.rpartition("PLAY RECAP")[2]
            assert re.search(r"demo-w1 .*(unreachable|failed)=1", output)
            assert list(stamps(fleet)) == [0]
            inject(fleet, recovery)
            wait_for_ssh(fleet)
            fleet.on("demo-w0", "rm", "/opt/tpufleet/ready.json")
        else:
            kill_at(controller, point)
            assert stamps(fleet) == {}
    fleet.must_play("setup.yml")
    assert all(stamp["environment"] for stamp in stamps(fleet).values())
    assert list(stamps(fleet)) == [0, 1]


def test_setup_with_renew_only_rewrites_the_stamps(fleet):
    before = stamps(fleet)
    again = fleet.must_play("setup.yml", "-e", "renew=true")
    # Two changes per worker: its stamp is removed and written again.
    assert set(re.findall(r"changed=(\d+)", again.output)) == {"2"}, again.output[-4000:]
    assert stamps(fleet) == before
