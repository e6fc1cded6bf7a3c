"""Version v1 of the API, which ``gcloud compute tpus list`` and related commands call."""

import pytest

from tests.localcloud.api.local_api import PROJECT, ZONE

HERE = f"/v1/projects/{PROJECT}/locations"


def test_v1_lists_a_tpu_with_its_network_address_and_version(local_api):
    created = local_api.create("one", schedulingConfig={"spot": True})
    local_api.ended(created)

    (node,) = local_api.get(f"{HERE}/-/nodes")["nodes"]
    operation = local_api.get(f"/v1/{created['name']}")

    assert node == local_api.get(f"{HERE}/{ZONE}/nodes/one")
    assert (node["state"], node["acceleratorType"]) == ("READY", "v4-16")
    assert node["network"] == f"projects/{PROJECT}/global/networks/default"
    assert (node["ipAddress"], node["port"]) == ("10.77.0.1", "8470")
    assert [point["ipAddress"] for point in node["networkEndpoints"]] == ["10.77.0.1", "10.77.0.2"]
    assert node["tensorflowVersion"] == "tpu-ubuntu2204-base"
    assert node["schedulingConfig"] == {}
    assert operation["metadata"]["apiVersion"] == "v2"
    assert operation["response"]["state"] == "READY"


@pytest.mark.parametrize(
    ("path", "collection", "field"),
    [
        (HERE, "locations", "locationId"),
        (f"{HERE}/{ZONE}/acceleratorTypes", "acceleratorTypes", "type"),
        (f"{HERE}/{ZONE}/tensorflowVersions", "tensorflowVersions", "version"),
    ],
)
def test_v1_lists_and_describes_what_exists(shared_api, path, collection, field):
    listed = shared_api.get(path)[collection]

    first = shared_api.get(f"/v1/{listed[0]['name']}")

    assert first == listed[0]
    assert set(first) == {"name", field}
    assert f"/{collection}/" in first["name"]
