"""The machines' metadata server: each worker asks about itself, as on a TPU VM of Google's."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests
from jax._src.clusters import cloud_tpu_cluster

from localcloud.api import catalog
from localcloud.api.metadata import bounds
from localcloud.api.metadata_server import Tokens
from tests.localcloud.api.local_api import NODE, ZONE, LocalApi, wait_for
from tests.localcloud.api.machines_in_memory import MachinesInMemory

V1 = "/computeMetadata/v1"
ATTRIBUTES = f"{V1}/instance/attributes"
FLAVOR = {"Metadata-Flavor": "Google"}


@dataclass(frozen=True)
class Told:
    code: int
    text: str
    headers: dict[str, str]


class Cloud(LocalApi):
    """A local cloud whose machines have addresses of loopback, so that a test may ask as one."""

    metadata_at = ("127.0.0.1", 0)

    def ask(self, machine: str, path: str, headers=FLAVOR) -> Told:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.server.metadata_port, timeout=20, source_address=(machine, 0)
        )
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        told = Told(answer.status, answer.read().decode(), dict(answer.getheaders()))
        connection.close()
        return told

    def addresses(self, node_id: str) -> list[str]:
        return [it["ipAddress"] for it in self.node(node_id)["networkEndpoints"]]


@pytest.fixture
def cloud(tmp_path) -> Iterator[Cloud]:
    api = Cloud(tmp_path / "cloud", MachinesInMemory("127.77.0.0/24"))
    yield api
    api.halt()


@pytest.fixture
def workers(cloud) -> list[str]:
    """Two workers of a TPU, by their addresses."""
    cloud.ready("pod", metadata={"ssh-keys": "tpu:key", "startup-script": "echo\nhello"})
    return cloud.addresses("pod")


class Waiter(threading.Thread):
    """A guest that waits for a change of a path."""

    def __init__(self, cloud: Cloud, machine: str, path: str, query: str = "") -> None:
        super().__init__(daemon=True)
        self.told: Told | None = None
        plain = query.removeprefix("&")
        etag = cloud.ask(machine, f"{path}?{plain}").headers["ETag"]
        waits = f"wait_for_change=true&last_etag={etag}{query}"
        self._ask = (cloud, machine, f"{path}?{waits}")
        self.start()

    def run(self) -> None:
        cloud, machine, path = self._ask
        self.told = cloud.ask(machine, path)

    def answer(self) -> str:
        self.join(20)
        assert self.told is not None
        return self.told.text


def test_each_worker_is_told_about_itself(cloud, workers):
    for index, machine in enumerate(workers):
        assert cloud.ask(machine, f"{ATTRIBUTES}/agent-worker-number").text == str(index)
        assert cloud.ask(machine, f"{V1}/instance/network-interfaces/0/ip").text == machine
    names = {cloud.ask(machine, f"{V1}/instance/name").text for machine in workers}
    assert names == set(cloud.machines.specs)


def test_who_is_no_machine_of_the_cloud_is_told_nothing(cloud, workers):
    assert cloud.ask("127.77.0.200", f"{V1}/project/project-id").code == 403


@pytest.mark.parametrize(
    "headers", [{}, {"Metadata-Flavor": "google"}, {**FLAVOR, "X-Forwarded-For": "10.0.0.1"}]
)
def test_a_request_that_the_guest_itself_did_not_make_is_refused(cloud, workers, headers):
    told = cloud.ask(workers[0], f"{V1}/project/project-id", headers)

    assert told.code == 403
    assert told.headers["Metadata-Flavor"] == "Google"


def test_a_ping_of_the_root_is_answered_as_google_auth_expects(cloud, workers):
    told = cloud.ask(workers[0], "/", {})

    assert (told.code, told.headers["Metadata-Flavor"]) == (200, "Google")
    assert told.text == "computeMetadata/\n"


def test_jax_finds_its_place_in_the_pod(cloud, workers, monkeypatch):
    def get(url, headers, timeout):
        told = cloud.ask(workers[1], url.removeprefix("http://metadata.google.internal"), headers)
        return type("Response", (), {"status_code": told.code, "text": told.text})

    monkeypatch.setattr("requests.get", get)
    cluster = cloud_tpu_cluster.GceTpuCluster

    assert cluster._get_worker_list_in_slice() == workers
    assert cluster._get_process_id_in_slice() == 1
    assert cluster.get_process_count() == 2
    assert cloud_tpu_cluster.get_tpu_env_value_from_metadata("ACCELERATOR_TYPE") == "v4-16"


def test_slices_of_one_request_know_their_order_and_the_first(cloud):
    spec = {
        "parent": f"projects/local-fleet/locations/{ZONE}",
        "multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "s"},
        "node": NODE,
    }
    path = f"locations/{ZONE}/queuedResources"
    cloud.call("POST", path, {"tpu": {"nodeSpec": [spec]}}, queuedResourceId="qr")
    wait_for(lambda: cloud.get(f"{path}/qr")["state"]["state"] == "ACTIVE" or None)
    first = cloud.addresses("s-0")[0]

    env = cloud.ask(cloud.addresses("s-1")[1], f"{ATTRIBUTES}/tpu-env").text.splitlines()

    assert f"MEGASCALE_COORDINATOR_ADDRESS: '{first}:8081'" in env
    assert "MEGASCALE_NUM_SLICES: '2'" in env
    assert "MEGASCALE_SLICE_ID: '1'" in env
    assert "WORKER_ID: '1'" in env


def test_nodes_that_are_no_multislice_have_no_slices(cloud, workers):
    assert "MEGASCALE" not in cloud.ask(workers[0], f"{ATTRIBUTES}/tpu-env").text


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
def test_chips_and_hosts_multiply_to_the_topology(kind, chips, hosts):
    assert bounds(catalog.ACCELERATORS[kind]) == (chips, hosts)


def test_every_accelerator_has_as_many_hosts_as_its_bounds_say():
    for accelerator in catalog.ACCELERATORS.values():
        x, y, z = map(int, bounds(accelerator)[1].split(","))
        assert x * y * z == accelerator.workers, accelerator.name


def test_the_node_s_metadata_are_attributes_as_they_were_given(cloud, workers):
    assert cloud.ask(workers[0], f"{ATTRIBUTES}/ssh-keys").text == "tpu:key"
    assert cloud.ask(workers[0], f"{ATTRIBUTES}/startup-script").text == "echo\nhello"
    assert cloud.ask(workers[0], f"{ATTRIBUTES}/shutdown-script").code == 404


def test_a_directory_lists_its_names_and_is_asked_for_with_a_slash(cloud, workers):
    there = cloud.ask(workers[0], f"{V1}/project/")
    moved = cloud.ask(workers[0], f"{V1}/project")

    assert there.text == "attributes/\nnumeric-project-id\nproject-id\n"
    assert (moved.code, moved.headers["Location"]) == (301, f"{V1}/project/")


def test_all_below_a_directory_is_json_in_camel_case_but_for_the_attributes(cloud, workers):
    told = cloud.ask(workers[0], f"{V1}/instance/?recursive=true")

    instance = json.loads(told.text)
    assert told.headers["Content-Type"] == "application/json"
    assert instance["attributes"]["agent-worker-number"] == "0"
    assert instance["networkInterfaces"] == [{"ip": workers[0], "accessConfigs": []}]
    assert instance["machineType"].endswith("/machineTypes/ct4p-hightpu-4t")
    assert instance["zone"].endswith(f"/zones/{ZONE}")
    assert isinstance(instance["id"], int)


def test_all_below_a_directory_may_be_a_line_a_leaf(cloud, workers):
    told = cloud.ask(workers[0], f"{V1}/instance/scheduling/?recursive=true&alt=text")

    expected = "automatic-restart TRUE\non-host-maintenance TERMINATE\npreemptible FALSE\n"
    assert told.text == expected


def test_a_leaf_is_text_or_json_as_asked(cloud, workers):
    assert cloud.ask(workers[0], f"{V1}/project/project-id?alt=json").text == '"local-fleet"'
    assert cloud.ask(workers[0], f"{V1}/project/project-id?alt=yaml").code == 400


def test_an_external_address_is_there_where_the_node_has_one(cloud):
    cloud.ready("out", networkConfig={"enableExternalIps": True})
    (machine, _) = cloud.addresses("out")

    path = f"{V1}/instance/network-interfaces/0/access-configs/0/external-ip"
    external = cloud.node("out")["networkEndpoints"][0]["accessConfig"]["externalIp"]
    assert cloud.ask(machine, path).text == external


def test_a_token_is_the_node_s_account_s_and_opens_nothing_of_the_api(cloud, workers):
    accounts = f"{V1}/instance/service-accounts"
    email = cloud.ask(workers[0], f"{accounts}/default/email").text
    token = json.loads(cloud.ask(workers[0], f"{accounts}/default/token").text)
    again = json.loads(cloud.ask(workers[1], f"{accounts}/{email}/token").text)

    assert email == cloud.node("pod")["serviceAccount"]["email"]
    assert email != json.loads(cloud.credentials_file.read_text())["client_email"]
    assert token["access_token"] == again["access_token"]
    bearer = {"Authorization": f"Bearer {token['access_token']}"}
    assert (
        requests.get(f"{cloud.endpoint}/v2/projects", headers=bearer, timeout=20).status_code == 401
    )
    assert "token" not in cloud.ask(workers[0], f"{accounts}/?recursive=true").text


def test_a_token_is_renewed_before_it_ends():
    clock = [0.0]
    tokens = Tokens(now=lambda: clock[0])
    first = tokens.of("a")["access_token"]
    clock[0] = 3000.0
    assert tokens.of("a") == {"access_token": first, "expires_in": 600, "token_type": "Bearer"}
    clock[0] = 3400.0
    assert tokens.of("a")["access_token"] != first
    assert tokens.of("b")["access_token"] != tokens.of("a")["access_token"]


def test_a_patched_value_reaches_who_waits_for_it(cloud, workers):
    waiter = Waiter(cloud, workers[1], f"{ATTRIBUTES}/ssh-keys")
    still = Waiter(cloud, workers[1], f"{V1}/instance/name", "&timeout_sec=1")
    path = f"locations/{ZONE}/nodes/pod"
    cloud.call("PATCH", path, {"metadata": {"ssh-keys": "tpu:new"}}, updateMask="metadata")

    assert waiter.answer() == "tpu:new"
    assert still.answer() in cloud.machines.specs


def test_a_change_between_two_waits_is_not_lost(cloud, workers):
    before = cloud.ask(workers[0], f"{ATTRIBUTES}/?recursive=true").headers["ETag"]
    path = f"locations/{ZONE}/nodes/pod"
    cloud.call("PATCH", path, {"metadata": {"note": "new"}}, updateMask="metadata")

    query = f"recursive=true&wait_for_change=true&last_etag={before}"
    told = cloud.ask(workers[0], f"{ATTRIBUTES}/?{query}")

    assert json.loads(told.text)["note"] == "new"
    assert told.headers["ETag"] != before


def test_who_waits_no_longer_than_so_long_is_told_what_is(cloud, workers):
    told = cloud.ask(workers[0], f"{V1}/instance/preempted?wait_for_change=true&timeout_sec=0")

    assert told.text == "FALSE"
    query = "wait_for_change=true&timeout_sec=soon"
    assert cloud.ask(workers[0], f"{V1}/instance/preempted?{query}").code == 400


def test_an_announced_preemption_wakes_who_waits_for_it(cloud, workers):
    waiter = Waiter(cloud, workers[1], f"{V1}/instance/preempted")

    cloud.call("POST", "/_localcloud/nodes/pod:preempt", {"warningSeconds": 3600})

    assert waiter.answer() == "TRUE"
    assert cloud.node("pod")["state"] == "READY"


def test_a_maintenance_is_told_to_the_worker_that_it_reboots(cloud, workers):
    event = f"{V1}/instance/maintenance-event"
    waiter = Waiter(cloud, workers[1], event)
    cloud.machines.hold = threading.Event()
    path = f"/v2alpha1/projects/local-fleet/locations/{ZONE}/nodes/pod:simulateMaintenanceEvent"

    operation = cloud.call("POST", path, {"workerIds": ["1"]}).json()

    assert waiter.answer() == "TERMINATE_ON_HOST_MAINTENANCE"
    assert cloud.ask(workers[0], event).text == "NONE"
    cloud.machines.hold.set()
    cloud.ended(operation)
    assert cloud.ask(workers[1], event).text == "NONE"


def test_the_project_s_metadata_and_number_are_those_of_the_compute_api(cloud, workers):
    path = "/compute/v1/projects/local-fleet"
    project = cloud.get(path)
    items = [{"key": "ssh-keys", "value": "bob:key"}]
    fingerprint = project["commonInstanceMetadata"]["fingerprint"]
    waiter = Waiter(cloud, workers[1], f"{V1}/project/", "&recursive=true")

    change = {"fingerprint": fingerprint, "items": items}
    assert cloud.call("POST", f"{path}/setCommonInstanceMetadata", change).status_code == 200

    told = json.loads(waiter.answer())
    assert told["attributes"] == {"ssh-keys": "bob:key"}
    assert str(told["numericProjectId"]) == project["id"]


def test_a_server_that_ends_lets_go_of_who_waits(cloud, workers):
    waiter = Waiter(cloud, workers[0], f"{V1}/instance/preempted")
    time.sleep(0.1)  # its request has most likely arrived by then

    cloud.halt()

    assert waiter.answer() == "FALSE"
    cloud.boot()
