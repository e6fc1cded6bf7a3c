"""The machines' metadata server: each worker gets its own metadata, as on Google's TPU VMs."""

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import requests
from jax._src.clusters import cloud_tpu_cluster  # noqa: TID251 - the client under test

from localcloud.api import catalog
from localcloud.api.metadata import bounds
from localcloud.api.metadata_server import Tokens
from localcloud.machines.guest import agent
from tests.localcloud.api.local_api import ZONE, LocalApi
from tests.localcloud.api.machines_in_memory import MachinesInMemory

V1 = "/computeMetadata/v1"
ATTRIBUTES = f"{V1}/instance/attributes"
PATCHED = f"locations/{ZONE}/nodes/pod"
FLAVOR = {"Metadata-Flavor": "Google"}


@dataclass(frozen=True)
class Reply:
    code: int
    text: str
    headers: dict[str, str]


class Cloud(LocalApi):
    """A local cloud whose machines have loopback addresses, so that a test can send from them."""

    metadata_at = ("127.0.0.1", 0)

    def ask(self, machine: str, path: str, headers=FLAVOR) -> Reply:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.server.metadata_port, timeout=20, source_address=(machine, 0)
        )
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        reply = Reply(answer.status, answer.read().decode(), dict(answer.getheaders()))
        connection.close()
        return reply

    def addresses(self, node_id: str) -> list[str]:
        return [endpoint["ipAddress"] for endpoint in self.node(node_id)["networkEndpoints"]]


@pytest.fixture
def cloud(tmp_path) -> Iterator[Cloud]:
    api = Cloud(tmp_path / "cloud", MachinesInMemory("127.77.0.0/24"))
    yield api
    api.halt()


@pytest.fixture
def workers(cloud) -> list[str]:
    """The addresses of a TPU's two workers."""
    metadata = {"ssh-keys": "tpu:key", "startup-script": "echo\nhello"}
    cloud.ready("pod", metadata=metadata, networkConfig={"enableExternalIps": True})
    return cloud.addresses("pod")


GUESTS = ThreadPoolExecutor(2)


def waiting(cloud: Cloud, machine: str, path: str, query: str = "") -> Future[str]:
    """Start a guest that waits until the value at a path changes; return its future reply."""
    etag = cloud.ask(machine, f"{path}?{query}").headers["ETag"]
    waits = f"{path}?wait_for_change=true&last_etag={etag}&{query}"
    return GUESTS.submit(lambda: cloud.ask(machine, waits).text)


def test_each_worker_gets_its_own_metadata(cloud, workers):
    for machine in workers:
        assert cloud.ask(machine, f"{V1}/instance/network-interfaces/0/ip").text == machine
    names = {cloud.ask(machine, f"{V1}/instance/name").text for machine in workers}
    assert names == set(cloud.machines.specs)


SCHEDULING = "automatic-restart TRUE\non-host-maintenance TERMINATE\npreemptible FALSE\n"
REPLIES = {
    "instance/attributes/agent-worker-number": (200, "1"),
    "instance/attributes/ssh-keys": (200, "tpu:key"),
    "instance/attributes/startup-script": (200, "echo\nhello"),
    "instance/scheduling/?recursive=true&alt=text": (200, SCHEDULING),
    "instance/preempted?wait_for_change=true&timeout_sec=0": (200, "FALSE"),
    "instance/preempted?wait_for_change=true&last_etag=earlier": (200, "FALSE"),
    "instance/preempted?wait_for_change=true&timeout_sec=soon": (
        400,
        "timeout_sec is not a number of seconds\n",
    ),
    "project/": (200, "attributes/\nnumeric-project-id\nproject-id\n"),
    "project": (301, ""),
    "project/project-id": (200, "local-fleet"),
    "project/project-id?alt=json": (200, '"local-fleet"'),
    "project/project-id?alt=yaml": (400, "alt is yaml, not json or text\n"),
    "project/none": (404, f"{V1}/project/none is not in this machine's metadata\n"),
}


def test_the_metadata_server_answers_with_googles_values_directories_and_errors(cloud, workers):
    replies = {path: cloud.ask(workers[1], f"{V1}/{path}") for path in REPLIES}

    assert {path: (reply.code, reply.text) for path, reply in replies.items()} == REPLIES
    assert replies["project"].headers["Location"] == f"{V1}/project/"
    assert cloud.ask("127.77.0.200", f"{V1}/project/project-id").code == 403  # no machine's address


def test_the_metadata_server_requires_the_header_except_for_a_ping_of_the_root(cloud, workers):
    ping = cloud.ask(workers[0], "/", {})
    assert (ping.code, ping.text) == (200, "computeMetadata/\n")
    proxied = {**FLAVOR, "X-Forwarded-For": "10.0.0.1"}

    for headers in ({}, {"Metadata-Flavor": "google"}, proxied):
        reply = cloud.ask(workers[0], f"{V1}/project/project-id", headers)

        assert reply.code == 403
        assert ping.headers["Metadata-Flavor"] == reply.headers["Metadata-Flavor"] == "Google"


def test_jax_finds_its_process_id_and_coordinator(cloud, workers, monkeypatch):
    def get(url, headers, timeout):
        reply = cloud.ask(workers[1], url.removeprefix("http://metadata.google.internal"), headers)
        return type("Response", (), {"status_code": reply.code, "text": reply.text})

    monkeypatch.setattr("requests.get", get)
    cluster = cloud_tpu_cluster.GceTpuCluster

    assert cluster._get_worker_list_in_slice() == workers
    assert cluster._get_process_id_in_slice() == 1
    assert cluster.get_process_count() == 2
    assert cloud_tpu_cluster.get_tpu_env_value_from_metadata("ACCELERATOR_TYPE") == "v4-16"


def test_slices_of_a_queued_resource_get_their_slice_id_and_coordinator(cloud):
    cloud.queue("qr", {"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "s"}})
    cloud.queued("qr", "ACTIVE")
    first = cloud.addresses("s-0")[0]

    env = cloud.ask(cloud.addresses("s-1")[1], f"{ATTRIBUTES}/tpu-env").text.splitlines()

    assert f"MEGASCALE_COORDINATOR_ADDRESS: '{first}:8081'" in env
    assert "MEGASCALE_NUM_SLICES: '2'" in env
    assert "MEGASCALE_SLICE_ID: '1'" in env
    assert "WORKER_ID: '1'" in env
    cloud.ready("alone")
    assert "MEGASCALE" not in cloud.ask(cloud.addresses("alone")[0], f"{ATTRIBUTES}/tpu-env").text


@pytest.mark.parametrize(
    ("kind", "chips", "hosts"),
    [
        ("v2-8", "2,2,1", "1,1,1"),
        ("v3-32", "2,2,1", "2,2,1"),
        ("v4-16", "2,2,1", "1,1,2"),
        ("v5litepod-1", "1,1,1", "1,1,1"),
        ("v5litepod-8", "2,4,1", "1,1,1"),
        ("v5p-128", "2,2,1", "2,2,4"),
    ],
)
def test_an_accelerator_has_googles_bounds_of_chips_and_hosts(kind, chips, hosts):
    assert bounds(catalog.ACCELERATORS[kind]) == (chips, hosts)


def test_every_accelerators_host_bounds_match_its_number_of_workers():
    for accelerator in catalog.ACCELERATORS.values():
        x, y, z = map(int, bounds(accelerator)[1].split(","))
        assert x * y * z == accelerator.workers, accelerator.name


def test_a_recursive_request_returns_camel_case_json_except_attributes(cloud, workers):
    reply = cloud.ask(workers[0], f"{V1}/instance/?recursive=true")

    instance = json.loads(reply.text)
    assert reply.headers["Content-Type"] == "application/json"
    assert instance["attributes"]["agent-worker-number"] == "0"
    access = {"externalIp": workers[0], "type": "ONE_TO_ONE_NAT"}
    assert instance["networkInterfaces"] == [{"ip": workers[0], "accessConfigs": [access]}]
    assert instance["machineType"].endswith("/machineTypes/ct4p-hightpu-4t")
    assert instance["zone"].endswith(f"/zones/{ZONE}")
    assert isinstance(instance["id"], int)


def test_the_api_refuses_the_token_of_a_nodes_service_account(cloud, workers):
    accounts = f"{V1}/instance/service-accounts"
    email = cloud.ask(workers[0], f"{accounts}/default/email").text
    token = json.loads(cloud.ask(workers[0], f"{accounts}/default/token").text)
    second = json.loads(cloud.ask(workers[1], f"{accounts}/{email}/token").text)

    assert email == cloud.node("pod")["serviceAccount"]["email"]
    assert email != json.loads(cloud.credentials_file.read_text())["client_email"]
    assert token["access_token"] == second["access_token"]
    bearer = {"Authorization": f"Bearer {token['access_token']}"}
    assert (
        requests.get(f"{cloud.endpoint}/v2/projects", headers=bearer, timeout=20).status_code == 401
    )
    assert "token" not in cloud.ask(workers[0], f"{accounts}/?recursive=true").text


def test_a_token_is_renewed_before_it_expires():
    clock = [0.0]
    tokens = Tokens(now=lambda: clock[0])
    first = tokens.of("a")["access_token"]
    clock[0] = 3000.0
    assert tokens.of("a") == {"access_token": first, "expires_in": 600, "token_type": "Bearer"}
    clock[0] = 3400.0
    assert tokens.of("a")["access_token"] != first
    assert tokens.of("b")["access_token"] != tokens.of("a")["access_token"]


def test_a_patched_value_reaches_a_waiting_guest(cloud, workers):
    waiter = waiting(cloud, workers[1], f"{ATTRIBUTES}/ssh-keys")
    unchanged = waiting(cloud, workers[1], f"{V1}/instance/name", "timeout_sec=1")
    cloud.call("PATCH", PATCHED, {"metadata": {"ssh-keys": "tpu:new"}}, updateMask="metadata")

    assert waiter.result(20) == "tpu:new"
    assert unchanged.result(20) in cloud.machines.specs


def test_an_announced_preemption_wakes_a_waiting_guest(cloud, workers):
    waiter = waiting(cloud, workers[1], f"{V1}/instance/preempted")

    cloud.preempt("pod", warningSeconds=3600)

    assert waiter.result(20) == "TRUE"
    assert cloud.node("pod")["state"] == "READY"


def test_a_maintenance_event_is_shown_to_the_affected_worker(cloud, workers):
    event = f"{V1}/instance/maintenance-event"
    waiter = waiting(cloud, workers[1], event)
    path = f"/v2alpha1/projects/local-fleet/locations/{ZONE}/nodes/pod:simulateMaintenanceEvent"

    with cloud.machines.held():
        operation = cloud.call("POST", path, {"workerIds": ["1"]}).json()

        assert waiter.result(20) == "TERMINATE_ON_HOST_MAINTENANCE"
        assert cloud.ask(workers[0], event).text == "NONE"
    cloud.ended(operation)
    assert cloud.ask(workers[1], event).text == "NONE"


def test_the_projects_metadata_and_number_match_the_compute_api(cloud, workers):
    path = "/compute/v1/projects/local-fleet"
    project = cloud.get(path)
    items = [{"key": "ssh-keys", "value": "bob:key"}]
    fingerprint = project["commonInstanceMetadata"]["fingerprint"]
    waiter = waiting(cloud, workers[1], f"{V1}/project/", "recursive=true")

    change = {"fingerprint": fingerprint, "items": items}
    assert cloud.call("POST", f"{path}/setCommonInstanceMetadata", change).status_code == 200

    reply = json.loads(waiter.result(20))
    assert reply["attributes"] == {"ssh-keys": "bob:key"}
    assert str(reply["numericProjectId"]) == project["id"]


def test_a_stopping_server_answers_waiting_guests(cloud, workers):
    waiter = waiting(cloud, workers[0], f"{V1}/instance/preempted")
    time.sleep(0.1)  # long enough for the request to arrive

    cloud.halt()

    assert waiter.result(20) == "FALSE"
    cloud.boot()


def test_the_guest_agent_waits_for_changed_metadata(tmp_path):
    cloud = Cloud(tmp_path / "cloud", MachinesInMemory("127.0.0.0/30"))
    server = f"127.0.0.1:{cloud.server.metadata_port}"
    with pytest.raises(http.client.HTTPException, match="403"):
        agent.next_metadata("0", server)  # no machine has this address yet
    cloud.ready("pod", metadata={"ssh-keys": "ada:a"}, acceleratorType="v4-8")

    metadata, etag = agent.next_metadata("0", server)
    cloud.call("PATCH", PATCHED, {"metadata": {"ssh-keys": "ada:b"}}, updateMask="metadata")
    changed, _ = agent.next_metadata(etag, server)
    cloud.halt()

    assert agent.desired_keys(metadata) == {"ada": ["a"]}
    assert agent.desired_keys(changed) == {"ada": ["b"]}
