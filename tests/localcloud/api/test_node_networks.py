"""Networks and names of TPUs: the local cloud refuses what Google refuses."""

import uuid

import pytest

from tests.localcloud.api.local_api import NODE, PROJECT, ZONE, code_of, field_of

HERE = f"projects/{PROJECT}"
NODES, QUEUE = f"locations/{ZONE}/nodes", f"locations/{ZONE}/queuedResources"
SUBNETS = f"{HERE}/regions/us-central2/subnetworks"
GOOGLE = "https://www.googleapis.com/compute/v1"


@pytest.fixture
def compute(compute):
    """The Compute API with two more networks; ``bare`` has no subnetworks."""
    compute.done("POST", "global/networks", {"name": "other"})
    compute.done("POST", "global/networks", {"name": "bare", "autoCreateSubnetworks": False})
    return compute


@pytest.mark.usefixtures("compute")
@pytest.mark.parametrize(
    ("config", "network", "subnetwork"),
    [
        ({}, "default", "default"),
        ({"network": "other"}, "other", "other"),
        ({"network": "global/networks/other"}, "other", "other"),
        ({"network": f"{HERE}/global/networks/other"}, "other", "other"),
        ({"network": f"{GOOGLE}/{HERE}/global/networks/other"}, "other", "other"),
        ({"subnetwork": "other"}, "other", "other"),
        ({"subnetwork": "regions/us-central2/subnetworks/other"}, "other", "other"),
        ({"network": "default", "subnetwork": f"{SUBNETS}/default"}, "default", "default"),
        ({"subnetwork": f"{GOOGLE}/{SUBNETS}/default"}, "default", "default"),
    ],
)
def test_a_tpu_shows_the_full_names_of_its_network_and_subnetwork(
    local_api, config, network, subnetwork
):
    shown_config = local_api.ready("one", networkConfig=config)["networkConfig"]

    assert shown_config["network"] == f"{HERE}/global/networks/{network}"
    assert shown_config["subnetwork"] == f"{SUBNETS}/{subnetwork}"


@pytest.mark.usefixtures("compute")
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"network": "nowhere"}, (404, "NOT_FOUND")),
        ({"network": "projects/strange/global/networks/default"}, (404, "NOT_FOUND")),
        ({"subnetwork": "nowhere"}, (404, "NOT_FOUND")),
        ({"network": "bare"}, (404, "NOT_FOUND")),
        ({"subnetwork": "regions/us-east1/subnetworks/default"}, (400, "INVALID_ARGUMENT")),
        ({"network": "other", "subnetwork": "default"}, (400, "INVALID_ARGUMENT")),
        ({"network": "zones/x/networks/default"}, (400, "INVALID_ARGUMENT")),
    ],
)
def test_an_invalid_network_or_subnetwork_is_refused(local_api, config, expected):
    body = {**NODE, "networkConfig": config}
    assert code_of(local_api.refused("POST", NODES, body, nodeId="one")) == expected
    assert local_api.get("locations/-/nodes") == {}


def test_each_of_several_networks_must_exist(local_api):
    configs = [{"network": "default"}, {"network": "nowhere"}]
    answer = local_api.call("POST", NODES, {**NODE, "networkConfigs": configs}, nodeId="one")

    assert answer.status_code == 404
    node = local_api.ready("two", networkConfigs=configs[:1])
    assert node["networkConfigs"][0]["subnetwork"] == f"{SUBNETS}/default"


def queued(api, network="default", node_id="one"):
    node = {**NODE, "networkConfig": {"network": network}}
    return api.queue("q", {"nodeId": node_id, "node": node})


def test_a_queued_resource_in_a_missing_network_is_refused(local_api):
    assert queued(local_api, "nowhere").json()["error"]["status"] == "NOT_FOUND"


def test_a_queued_resource_whose_network_is_deleted_meanwhile_fails(local_api, compute):
    local_api.faults(capacity=[{}])
    assert queued(local_api, "other").ok
    compute.done("DELETE", "global/networks/other")
    local_api.faults(capacity=[])

    error = local_api.queued("q", "FAILED")["state"]["failedData"]["error"]
    assert (error["code"], "networks/other" in error["message"]) == (5, True)


def test_a_network_with_a_tpu_in_it_cannot_be_deleted(local_api, compute):
    local_api.ready("one", networkConfig={"network": "other"})

    in_use = compute.refused("DELETE", "global/networks/other", requestId=str(uuid.uuid4()))
    local_api.ended(local_api.delete("one"))

    assert in_use == (400, "resourceInUseByAnotherResource")
    compute.done("DELETE", "global/networks/other")


@pytest.mark.parametrize(
    "node_id", ["", "Pod", "my_tpu", "1pod", "pod-", "-pod", "p.d", "a b", "a/b", "p" * 64, "pöd"]
)
def test_an_invalid_node_id_is_refused(shared_api, node_id):
    direct = shared_api.refused("POST", NODES, NODE, nodeId=node_id)
    by_queue = queued(shared_api, node_id=node_id).json()["error"]

    for error, field in ((direct, "nodeId"), (by_queue, "queuedResource.tpu.nodeSpec[0].nodeId")):
        assert (code_of(error), field_of(error)) == ((400, "INVALID_ARGUMENT"), field)


def test_short_and_long_node_ids_are_accepted(local_api):
    for node_id in ("p", "pod-1", "p" * 63):
        assert local_api.ready(node_id)["name"].endswith(f"/{node_id}")
