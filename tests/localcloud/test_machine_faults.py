"""The metadata and injected faults of real machines, on one TPU with two workers."""

import shlex
from ipaddress import IPv4Address

import pytest

from harness.own_cloud import own_cloud
from localcloud import client
from localcloud.local_cloud import LocalCloud
from localcloud.machines.host_machines import answers_ssh
from tests.localcloud.real_machines import (
    NODES,
    addresses,
    create,
    login,
    new_key,
    ready,
    ssh,
    until,
)

pytestmark = pytest.mark.machines
ASK = "curl -s -H 'Metadata-Flavor: Google' http://metadata.google.internal/computeMetadata/v1"
STARTUP = "#!/bin/sh\necho started by $(id -un) >> /var/log/startup\n"
SCRIPTS = {
    "startup-script": STARTUP,
    "shutdown-script": "echo down >> /mnt/shared/shutdown-$(hostname)",
}


@pytest.fixture(scope="module")
def local_cloud():
    with own_cloud("faults") as local_cloud:
        yield local_cloud


@pytest.fixture(scope="module")
def workers(local_cloud, key) -> list[str]:
    """The addresses of a TPU's two workers."""
    create(local_cloud, "pod", key, metadata=SCRIPTS)
    return addresses(ready(local_cloud, "pod"))


def fault(local_cloud: LocalCloud, verb: str, worker: int, fault: str | None = None) -> None:
    body = {"workerIds": [str(worker)], **({"fault": fault} if fault else {})}
    client.request(local_cloud, "POST", f"/_localcloud/nodes/pod:{verb}", body)


def test_a_worker_gets_its_number_from_the_metadata_server(workers, key):
    for index, address in enumerate(workers):
        reply = ssh(key, address, f"{ASK}/instance/attributes/agent-worker-number")
        assert reply.stdout == str(index)


def test_the_startup_script_runs_as_root_at_each_boot(workers, key):
    log = until(lambda: ssh(key, workers[0], "cat /var/log/startup").stdout)
    assert log == "started by root\n"


def test_a_patch_adds_and_removes_ssh_keys_of_a_running_machine(
    local_cloud, workers, key, tmp_path
):
    other_key = new_key(tmp_path)

    def patch(keys: str) -> None:
        body = {"metadata": {**SCRIPTS, "ssh-keys": keys}}
        client.request(local_cloud, "PATCH", f"{NODES}/pod?updateMask=metadata", body)

    patch(login(key) + login(other_key, "ada"))
    until(lambda: ssh(other_key, workers[1], "sudo -n true", "ada").returncode == 0)
    patch(login(key))
    until(lambda: ssh(other_key, workers[1], "true", "ada").returncode != 0)

    assert ssh(key, workers[1], "true").returncode == 0


def test_a_hanging_worker_answers_nothing_until_it_resumes(local_cloud, workers, key):
    fault(local_cloud, "inject", 1, "hang")
    has_answered = answers_ssh(IPv4Address(workers[1]), 1.0)
    state = client.request(local_cloud, "GET", f"{NODES}/pod")["state"]
    fault(local_cloud, "clear", 1, "hang")

    assert not has_answered
    assert state == "READY"
    assert ssh(key, workers[1], "true").returncode == 0


def test_a_cut_worker_is_unreachable_and_loses_no_process(local_cloud, workers, key):
    ssh(key, workers[1], "nohup sleep 600 > /dev/null 2>&1 & echo $! > ~/pid")
    fault(local_cloud, "inject", 1, "cut")
    is_reachable = answers_ssh(IPv4Address(workers[1]), 1.0)
    neighbour = ssh(key, workers[0], f"timeout 2 bash -c '</dev/tcp/{workers[1]}/22'").returncode
    client.request(local_cloud, "POST", "/_localcloud/faults:clear")

    assert not is_reachable
    assert neighbour != 0
    until(lambda: ssh(key, workers[1], "kill -0 $(cat ~/pid)").returncode == 0)


def test_a_full_disk_affects_one_worker_and_loses_no_file(local_cloud, workers, key):
    ssh(key, workers[1], "echo kept > ~/before; sync")
    fault(local_cloud, "inject", 1, "full-disk")
    full = ssh(key, workers[1], "dd if=/dev/zero of=big bs=1M count=8")
    other_worker = ssh(key, workers[0], "dd if=/dev/zero of=big bs=1M count=8")
    fault(local_cloud, "clear", 1, "full-disk")

    assert "No space left on device" in full.stderr
    assert other_worker.returncode == 0
    after_clear = ssh(key, workers[1], "dd if=/dev/zero of=big bs=1M count=8 && cat ~/before")
    assert after_clear.stdout == "kept\n"


def test_a_powered_off_worker_has_its_files_after_a_boot(local_cloud, workers, key):
    ssh(key, workers[1], "echo kept > ~/before; sync")
    fault(local_cloud, "powerOff", 1)
    assert not answers_ssh(IPv4Address(workers[1]), 1.0)
    keys = client.request(local_cloud, "POST", f"{NODES}/pod:getGuestAttributes", {})
    assert len(keys["guestAttributes"]) == 2
    assert client.request(local_cloud, "GET", f"{NODES}/pod")["state"] == "READY"
    fault(local_cloud, "powerOn", 1)
    until(lambda: ssh(key, workers[1], "cat ~/before").stdout == "kept\n")


def test_a_maintenance_runs_the_shutdown_and_startup_scripts(local_cloud, workers, key):
    name = ssh(key, workers[0], "hostname").stdout.strip()
    path = f"{NODES.replace('/v2/', '/v2alpha1/')}/pod:simulateMaintenanceEvent"
    client.request(local_cloud, "POST", path, {"workerIds": ["0"]})
    ready(local_cloud, "pod")

    assert (local_cloud.shared / f"shutdown-{name}").read_text() == "down\n"
    until(lambda: ssh(key, workers[0], "wc -l < /var/log/startup").stdout == "2\n")


def test_an_announced_preemption_shuts_guests_down_and_deletes_their_machines(
    local_cloud, workers, key
):
    names = [ssh(key, address, "hostname").stdout.strip() for address in workers]
    (local_cloud.shared / f"shutdown-{names[0]}").unlink(missing_ok=True)
    wait = f"{ASK}/instance/preempted?wait_for_change=true > /mnt/shared/preempted"
    ssh(key, workers[0], f"nohup sh -c {shlex.quote(wait)} > /dev/null 2>&1 & sleep 1")

    client.request(local_cloud, "POST", "/_localcloud/nodes/pod:preempt", {"warningSeconds": 20})

    until(lambda: (local_cloud.shared / "preempted").read_text() == "TRUE", 20)
    until(lambda: all((local_cloud.shared / f"shutdown-{name}").exists() for name in names), 20)
    until(lambda: client.request(local_cloud, "GET", f"{NODES}/pod")["state"] == "PREEMPTED")
    until(lambda: not list(local_cloud.machines.iterdir()))
