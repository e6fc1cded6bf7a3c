"""After a server is killed or stopped, the next one finds its machines and resumes operations."""

import multiprocessing
import random
import threading

import pytest
import requests

from localcloud.machines.network import free_port
from tests.localcloud.api import killable_server
from tests.localcloud.api.local_api import NODE, ZONE, LocalApi, wait_for

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["__main__", killable_server.__name__])


def test_nodes_operations_and_addresses_survive_a_restart(local_api):
    node = local_api.ready("one")
    operations = local_api.get("locations/-/operations")
    local_api.halt()

    local_api.boot()

    assert local_api.node("one") == node
    assert local_api.get("locations/-/operations") == operations
    assert local_api.ready("two")["networkEndpoints"][0]["ipAddress"] == "10.77.0.3"


def test_a_ready_node_is_restarted_after_a_reboot_of_the_computer(local_api):
    local_api.ready("one")
    local_api.halt()
    local_api.machines.power_fails()

    with local_api.machines.held():
        local_api.boot()

        assert local_api.node("one")["state"] == "RESTARTING"
    node = local_api.state_is("one", "READY")
    assert len(node["networkEndpoints"]) == 2
    assert local_api.machines.running == set(local_api.machines.specs)


def test_a_node_that_cannot_be_restarted_is_retried_at_the_next_start(local_api):
    local_api.ready("one")
    local_api.halt()
    local_api.machines.power_fails()
    local_api.machines.refuse = {"start": 1}

    local_api.boot()
    node = local_api.state_is("one", "TERMINATED")
    local_api.halt()
    local_api.boot()

    assert "would not start" in node["healthDescription"]
    assert "healthDescription" not in local_api.state_is("one", "READY")


def test_an_interrupted_preemption_is_completed_without_a_restart_of_the_machines(local_api):
    local_api.ready("one")
    local_api.machines.refuse = {"delete": 1}
    local_api.preempt("one")
    local_api.halt()
    local_api.machines.power_fails()
    starts = list(local_api.machines.starts)

    local_api.boot()

    wait_for(lambda: not local_api.machines.specs)
    assert local_api.node("one")["state"] == "PREEMPTED"
    assert local_api.machines.starts == starts


def test_a_preemption_while_the_server_stops_succeeds_and_the_next_one_completes_it(local_api):
    local_api.ready("one")
    local_api.server._jobs.stop(0)

    answer = local_api.preempt("one")

    assert (answer.status_code, answer.json()["state"]) == (200, "PREEMPTED")
    local_api.halt()
    local_api.boot()
    wait_for(lambda: not local_api.machines.specs)


def test_a_creation_interrupted_by_a_stop_resumes_at_the_next_start(local_api):
    local_api.machines.hold = threading.Event()
    operation = local_api.create("one", acceleratorType="v4-64")
    assert local_api.machines.reached_hold.wait(20)
    local_api.interrupt()
    start_count = len(local_api.machines.starts)

    local_api.boot()

    assert 0 < start_count < 8
    assert len(local_api.ended(operation)["response"]["networkEndpoints"]) == 8


def test_an_interrupted_reset_reboots_every_machine(local_api):
    path = f"locations/{ZONE}/queuedResources"
    local_api.queue("qr", {"nodeId": "one", "node": {**NODE, "acceleratorType": "v4-64"}})
    local_api.queued("qr", "ACTIVE")
    local_api.machines.hold = threading.Event()
    local_api.machines.reached_hold.clear()
    operation = local_api.call("POST", f"{path}/qr:reset", {}).json()
    assert local_api.machines.reached_hold.wait(20)
    local_api.interrupt()
    local_api.machines.offs.clear()

    local_api.boot()

    assert "response" in local_api.ended(operation)
    assert set(local_api.machines.offs) == set(local_api.machines.specs)
    assert local_api.machines.running == set(local_api.machines.specs)


class Killable(LocalApi):
    """A ``LocalApi`` whose server runs in its own process, so that a test can kill it.

    Each server is forked from a process that has already imported its modules, which is faster.
    """

    delay = 0.15

    def boot(self) -> None:
        self.port = self.port or free_port("127.0.0.1", None, 20000)
        arguments = (self.state, self.port, self.delay)
        self.process = FORKS.Process(target=killable_server.serve, args=arguments)
        self.process.start()
        wait_for(self._answers)
        self.session = self.new_session()

    def _answers(self):
        try:
            return requests.get(self.endpoint, timeout=5).status_code
        except requests.ConnectionError:
            return None

    def halt(self) -> None:
        self.process.terminate()
        self.process.join(20)
        if self.process.is_alive():
            self.kill()
            raise AssertionError("the server did not stop on SIGTERM")
        assert self.process.exitcode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.join(20)
        assert not self.process.is_alive()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def machine_states(self) -> dict[str, bool]:
        homes = (self.state / "machines").iterdir()
        return {home.name: (home / "booted").exists() for home in homes}


@pytest.fixture
def killable(tmp_path):
    api = Killable(tmp_path / "cloud")
    yield api
    api.halt()


def test_a_creation_and_a_deletion_interrupted_by_sigkill_resume_at_the_next_start(killable):
    operation = killable.create("one", acceleratorType="v4-64")
    wait_for(killable.machine_states)
    killable.kill()
    assert not all(killable.machine_states().values())

    killable.boot()

    ended = killable.ended(operation)
    assert len(ended["response"]["networkEndpoints"]) == 8
    assert list(killable.machine_states().values()) == [True] * 8
    operation = killable.delete("one")
    wait_for(lambda: len(killable.machine_states()) < 8)
    killable.kill()

    killable.boot()

    assert "response" in killable.ended(operation)
    assert killable.machine_states() == {}


def test_a_kill_at_any_time_loses_and_duplicates_no_queued_resource(killable):
    moments = random.Random(20261122)  # noqa: S311 - reproducible, not secret
    path = f"locations/{ZONE}/queuedResources"

    def kill_a_little_later():
        threading.Event().wait(moments.uniform(0, 0.4))
        killable.kill()
        killable.boot()

    slices = {"nodeCount": 2, "nodeIdPrefix": "s"}
    killable.queue("qr", {"multisliceParams": slices}, spot={})
    kill_a_little_later()
    kill_a_little_later()
    killable.queued("qr", "ACTIVE")
    assert list(killable.machine_states().values()) == [True] * 4
    killable.call("POST", f"{path}/qr:reset", {})
    kill_a_little_later()
    killable.state_is("s-0", "READY")
    killable.state_is("s-1", "READY")
    killable.preempt("s-0", warningSeconds=0.1)
    kill_a_little_later()
    killable.queued("qr", "SUSPENDED")
    deletion = killable.call("DELETE", f"{path}/qr").json()
    kill_a_little_later()

    assert "response" in killable.ended(deletion)
    assert killable.get("locations/-/nodes") == {}
    assert killable.machine_states() == {}


def assert_machines_match_the_nodes(killable):
    """Check that each worker has exactly one machine and address, and that no other machine exists.

    The machines of a READY node are running, and those of a STOPPED node are not.
    """
    status = killable.get("/_localcloud/status")
    workers = [worker for node in status["nodes"] for worker in node["workers"]]
    machines = [worker["machine"] for worker in workers]
    addresses = [worker["address"] for worker in workers]
    assert status["operations"] == []
    assert sorted(machines) == sorted(killable.machine_states())
    assert len(set(machines)) == len(machines)
    assert len(set(addresses)) == len(addresses)
    for node in status["nodes"]:
        running = {killable.machine_states()[worker["machine"]] for worker in node["workers"]}
        expected = {"READY": {True}, "STOPPED": {False}, "PREEMPTED": set()}
        assert running == expected[node["state"]], node


# The requests that are possible for a node in each observed state.
_REQUESTS = {
    None: ("create",),
    "READY": ("delete", "preempt", "warn", "stop", "maintain", "power off"),
    "STOPPED": ("start", "delete"),
    "PREEMPTED": ("delete",),
    "CREATING": ("delete",),
    "STARTING": ("delete",),
    "REPAIRING": ("delete",),
}


def send(killable, node_id, verb):
    path, alpha = f"locations/{ZONE}/nodes/{node_id}", "/v2alpha1/projects/local-fleet"
    fault = f"/_localcloud/nodes/{node_id}"
    calls = {
        "create": ("POST", f"locations/{ZONE}/nodes?nodeId={node_id}", ONE_WORKER),
        "delete": ("DELETE", path, None),
        "preempt": ("POST", f"{fault}:preempt", {}),
        "warn": ("POST", f"{fault}:preempt", {"warningSeconds": 0.2}),
        "stop": ("POST", f"{path}:stop", {}),
        "start": ("POST", f"{path}:start", {}),
        "maintain": ("POST", f"{alpha}/{path}:simulateMaintenanceEvent", {}),
        "power off": ("POST", f"{fault}:powerOff", {}),
    }
    # Ignore an error, because the state may have changed since it was observed.
    killable.call(*calls[verb])


ONE_WORKER = {**NODE, "acceleratorType": "v4-8"}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_kills_leak_and_duplicate_no_machine(killable, seed):
    chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
    names = ("a", "b", "c")
    for _ in range(5):
        states = {
            node["name"]: node["state"] for node in killable.get("/_localcloud/status")["nodes"]
        }
        for node_id in names:
            verbs = _REQUESTS.get(states.get(node_id), ())
            if verbs:
                send(killable, node_id, chance.choice(verbs))
        threading.Event().wait(chance.uniform(0, 0.5))
        killable.kill()
        killable.boot()

    resting = {"READY", "STOPPED", "PREEMPTED"}

    def settled():
        status = killable.get("/_localcloud/status")
        announced = any("preemptTime" in node for node in status["nodes"])
        has_preempted_machines = any(
            node["state"] == "PREEMPTED" and node["workers"] for node in status["nodes"]
        )
        moving = {node["state"] for node in status["nodes"]} - resting
        return not (status["operations"] or announced or has_preempted_machines or moving)

    wait_for(settled)
    # Restart the server, which also boots the machines that the fault "power off" has stopped.
    killable.kill()
    killable.boot()
    wait_for(settled)
    assert_machines_match_the_nodes(killable)
