"""Faults of single workers, and shutdowns of guests."""

import time

from localcloud.api import lifecycle
from localcloud.machines.interface import MachineSpec
from tests.localcloud.api.local_api import ZONE, wait_for


def post(api, path, **body):
    return api.call("POST", f"/_localcloud/{path}", body)


def alive(api, node_id="pod"):
    nodes = api.get("/_localcloud/status")["nodes"]
    (workers,) = (node["workers"] for node in nodes if node["name"] == node_id)
    return [worker["alive"] for worker in workers]


def becomes(api, expected):
    wait_for(lambda: alive(api) == expected)


def test_an_unknown_fault_of_a_worker_is_refused(local_api):
    local_api.ready("pod")

    answer = post(local_api, "nodes/pod:inject", fault="fire")

    assert answer.status_code == 400
    assert "not one of hang, cut, full-disk" in answer.json()["error"]["message"]


def test_a_powered_off_worker_leaves_its_node_ready_and_can_boot_again(local_api):
    before = local_api.ready("pod")

    post(local_api, "nodes/pod:powerOff", workerIds=["1"])

    assert alive(local_api) == [True, False]
    assert local_api.node("pod") == before
    dead = post(local_api, "nodes/pod:inject", workerIds=["1"], fault="hang")
    assert dead.status_code == 400
    post(local_api, "nodes/pod:powerOn", workerIds=["1"])
    becomes(local_api, [True, True])


def test_faults_of_a_preempted_nodes_workers_are_refused(local_api):
    local_api.ready("pod")
    local_api.preempt("pod")

    answer = post(local_api, "nodes/pod:powerOn", workerIds=["0"])

    assert answer.json()["error"]["status"] == "FAILED_PRECONDITION"


def test_a_late_worker_boots_after_its_node_is_ready_and_only_once(local_api):
    fault = {"worker": "pod-w1", "delaySeconds": 0.4, "times": 1}
    local_api.faults(late=[fault])

    local_api.ready("pod")

    assert alive(local_api) == [True, False]
    keys = local_api.call("POST", f"locations/{ZONE}/nodes/pod:getGuestAttributes", {})
    assert keys.status_code == 200
    becomes(local_api, [True, True])
    local_api.ended(local_api.delete("pod"))
    local_api.ready("pod")
    assert alive(local_api) == [True, True]
    local_api.faults(late=[{"worker": "late-w0", "delaySeconds": 0.1}])
    local_api.ready("late", acceleratorType="v4-8")
    local_api.ended(local_api.delete("late"))
    time.sleep(0.2)
    assert len(local_api.machines.specs) == 2  # the deletion cancelled the boot


def test_a_late_worker_boots_at_a_restart_of_the_server(local_api):
    local_api.faults(late=[{"worker": "pod-w0", "delaySeconds": 3600}])
    local_api.ready("pod")
    local_api.halt()

    local_api.boot()

    local_api.state_is("pod", "READY")
    assert alive(local_api) == [True, True]


def test_a_guest_that_does_not_shut_down_is_powered_off(local_api, monkeypatch):
    monkeypatch.setattr(lifecycle, "SHUTDOWN_S", 0.3)
    local_api.ready("one", acceleratorType="v4-8")
    local_api.machines.deaf = set(local_api.machines.specs)

    ended = local_api.ended(local_api.call("POST", f"locations/{ZONE}/nodes/one:stop", {}).json())

    assert ended["response"]["state"] == "STOPPED"
    assert local_api.machines.running == set()


def test_an_interrupted_stop_resumes_after_a_restart(local_api):
    local_api.ready("one", acceleratorType="v4-8")
    local_api.machines.deaf = set(local_api.machines.specs)
    operation = local_api.call("POST", f"locations/{ZONE}/nodes/one:stop", {}).json()
    wait_for(lambda: local_api.machines.shut_downs)
    local_api.halt()
    local_api.machines.deaf.clear()

    local_api.boot()

    assert local_api.ended(operation)["response"]["state"] == "STOPPED"


def test_an_announced_preemption_shuts_the_guests_down_for_good(local_api):
    local_api.ready("pod")
    local_api.preempt("pod", warningSeconds=3600)
    becomes(local_api, [False, False])
    assert set(local_api.machines.shut_downs) == set(local_api.machines.specs)
    starts = list(local_api.machines.starts)
    local_api.halt()

    local_api.boot()

    assert local_api.node("pod")["state"] == "READY"
    assert local_api.machines.starts == starts
    assert "preemptTime" in local_api.get("/_localcloud/status")["nodes"][0]


def test_a_started_server_retries_the_deletion_of_unknown_machines(local_api, monkeypatch):
    monkeypatch.setattr(lifecycle, "SWEEP_RETRY_S", 0.05)
    local_api.ready("pod")
    local_api.halt()
    machines = set(local_api.machines.specs)
    for number in (8, 9):
        address = local_api.machines.pool[number]
        local_api.machines.start(MachineSpec(f"t1v-n-stray-w-{number}", address, {}))
    local_api.machines.refuse = {"delete": 3}

    local_api.boot()

    assert local_api.node("pod")["state"] == "READY"
    wait_for(lambda: set(local_api.machines.specs) == machines)
    assert "would not delete" in local_api.log()
    assert "deleted the unknown machine t1v-n-stray-w-8" in local_api.log()


def test_a_server_starts_although_unknown_machines_cannot_be_deleted(local_api, monkeypatch):
    local_api.ready("pod")
    local_api.halt()

    def broken(keep):
        raise OSError("the disk is gone")

    monkeypatch.setattr(local_api.machines, "sweep", broken)

    local_api.boot()

    assert local_api.node("pod")["state"] == "READY"
    assert "the disk is gone" in local_api.log()
