"""Disks of the Compute API, and their attachment to TPUs."""

import pytest

from localcloud.api import compute_operation_table
from tests.localcloud.api.local_api import NODE, ZONE, code_of

DISKS = f"zones/{ZONE}/disks"
NODES = f"locations/{ZONE}/nodes"
SOURCE = f"projects/local-fleet/{DISKS}/data"


def made(compute, **fields):
    compute.done("POST", DISKS, {"name": "data", **fields})


def attached(mode="READ_ONLY", source=SOURCE):
    return {"dataDisks": [{"sourceDisk": source, "mode": mode}]}


def refused(api, node_id, **fields):
    return code_of(api.refused("POST", NODES, {**NODE, **fields}, nodeId=node_id))


def test_a_disk_has_a_type_and_its_size_as_a_string(compute):
    made(compute)
    kind = f"zones/{ZONE}/diskTypes/hyperdisk-balanced"
    compute.done("POST", DISKS, {"name": "fast", "type": kind, "sizeGb": 4, "labels": {"a": "b"}})

    standard, fast = compute.get(f"{DISKS}/data"), compute.get(f"{DISKS}/fast")

    assert (standard["sizeGb"], standard["type"].rpartition("/")[2]) == ("500", "pd-standard")
    assert (fast["sizeGb"], fast["type"].rpartition("/")[2]) == ("4", "hyperdisk-balanced")
    assert fast["labels"] == {"a": "b"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sizeGb": "9"}, (400, "invalid")),
        ({"sizeGb": "many"}, (400, "invalid")),
        ({"sizeGb": 1.5}, (400, "invalid")),
        ({"sizeGb": 0}, (400, "invalid")),
        ({"provisionedIops": "-5"}, (400, "invalid")),
        ({"name": "-"}, (400, "invalid")),
        ({"labels": {"Team": "a"}}, (400, "invalid")),
        ({"type": f"zones/{ZONE}/diskTypes/floppy"}, (404, "notFound")),
        ({"type": "zones/us-east1-c/diskTypes/pd-ssd"}, (404, "notFound")),
    ],
)
def test_an_invalid_disk_is_refused(shared_compute, fields, expected):
    assert shared_compute.refused("POST", DISKS, {"name": "data", **fields}) == expected


def test_a_disk_can_be_enlarged_but_not_shrunk(compute):
    made(compute, sizeGb="20")

    compute.done("POST", f"{DISKS}/data/resize", {"sizeGb": "40"})

    assert compute.get(f"{DISKS}/data")["sizeGb"] == "40"
    assert compute.refused("POST", f"{DISKS}/data/resize", {"sizeGb": "40"}) == (400, "invalid")
    assert compute.refused("POST", f"{DISKS}/data/resize", {}) == (400, "required")


def test_the_aggregated_list_of_disks_is_grouped_by_zone(compute):
    made(compute)
    compute.done("POST", "zones/us-east1-c/disks", {"name": "east"})

    items = compute.get("aggregated/disks", filter="sizeGb=500")["items"]

    assert {zone: item["disks"][0]["name"] for zone, item in items.items() if "disks" in item} == {
        f"zones/{ZONE}": "data",
        "zones/us-east1-c": "east",
    }
    assert items["zones/us-west4-a"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"


def test_a_disk_is_in_use_until_its_tpu_is_deleted(local_api, compute):
    made(compute)
    local_api.ready("one", **attached())

    users = compute.get(f"{DISKS}/data")["users"]
    in_use = compute.refused("DELETE", f"{DISKS}/data")
    local_api.ended(local_api.delete("one"))

    assert [user.rpartition("/v2/")[2] for user in users] == [
        f"projects/local-fleet/locations/{ZONE}/nodes/one"
    ]
    assert in_use == (400, "resourceInUseByAnotherResource")
    assert "users" not in compute.get(f"{DISKS}/data")
    compute.done("DELETE", f"{DISKS}/data")
    assert compute.refused("GET", f"{DISKS}/data") == (404, "notFound")


def test_several_workers_and_tpus_can_share_only_a_read_only_disk(local_api, compute):
    made(compute)
    writer = {"acceleratorType": "v4-8", **attached("READ_WRITE")}

    assert refused(local_api, "pod", **attached("READ_WRITE")) == (400, "INVALID_ARGUMENT")
    local_api.ready("writer", **writer)
    assert refused(local_api, "one", **attached()) == (400, "FAILED_PRECONDITION")
    local_api.ended(local_api.delete("writer"))
    local_api.ready("one", **attached())
    local_api.ready("two", **attached())

    assert len(compute.get(f"{DISKS}/data")["users"]) == 2
    assert refused(local_api, "three", **writer) == (400, "FAILED_PRECONDITION")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SOURCE, (404, "NOT_FOUND")),
        ("data", (400, "INVALID_ARGUMENT")),
        (SOURCE.replace(ZONE, "us-east1-c"), (400, "INVALID_ARGUMENT")),
        (SOURCE.replace("local-fleet", "other"), (400, "INVALID_ARGUMENT")),
    ],
)
def test_a_tpu_cannot_attach_a_disk_of_another_zone(local_api, source, expected):
    assert refused(local_api, "one", **attached(source=source)) == expected


def test_a_disk_is_ready_when_its_operation_ends(local_api, compute, monkeypatch):
    monkeypatch.setattr(compute_operation_table, "DURATION_S", 3600.0)
    compute.call("POST", DISKS, {"name": "data"})
    status = compute.get(f"{DISKS}/data")["status"]

    assert status == "CREATING"
    assert refused(local_api, "one", **attached()) == (400, "FAILED_PRECONDITION")


def test_the_content_of_a_disk_is_deleted_only_by_a_successful_deletion(local_api, compute):
    made(compute)
    failing = {"method": "compute.disks.delete", "code": "INTERNAL", "times": 1, "zone": ZONE}
    local_api.faults(outcomes=[failing])

    assert "error" in compute.done("DELETE", f"{DISKS}/data")
    assert compute.get(f"{DISKS}/data")["name"] == "data"
    assert local_api.machines.forgotten == []

    compute.done("DELETE", f"{DISKS}/data")
    assert local_api.machines.forgotten == [(ZONE, "data")]


def test_changing_a_disks_labels_needs_the_current_fingerprint(compute):
    made(compute, labels={"team": "a"})
    before = compute.get(f"{DISKS}/data")["labelFingerprint"]
    path = f"{DISKS}/data/setLabels"
    request = {"labels": {"team": "b", "cost": "1"}, "labelFingerprint": before}

    compute.done("POST", path, request)
    after = compute.get(f"{DISKS}/data")

    assert after["labels"] == request["labels"]
    assert after["labelFingerprint"] != before
    assert compute.refused("POST", path, request) == (412, "conditionNotMet")
    assert compute.refused("POST", path, {"labels": {}}) == (412, "conditionNotMet")
    stranger = {"labels": {"Team": "b"}, "labelFingerprint": after["labelFingerprint"]}
    assert compute.refused("POST", path, stranger)[0] == 400
    compute.done("POST", path, {"labelFingerprint": after["labelFingerprint"]})
    assert "labels" not in compute.get(f"{DISKS}/data")


ML = {"type": f"zones/{ZONE}/diskTypes/hyperdisk-ml"}
SHARED = {"accessMode": "READ_ONLY_MANY"}
UPDATE = {"paths": "accessMode"}


def test_a_hyperdisk_ml_can_be_shared_only_after_its_access_mode_was_changed(compute, local_api):
    made(compute, **ML)
    assert compute.get(f"{DISKS}/data")["accessMode"] == "READ_WRITE_SINGLE"
    assert refused(local_api, "one", **attached()) == (400, "FAILED_PRECONDITION")

    compute.done("PATCH", f"{DISKS}/data", SHARED, **UPDATE)

    assert compute.get(f"{DISKS}/data")["accessMode"] == "READ_ONLY_MANY"
    assert refused(local_api, "one", **attached("READ_WRITE")) == (400, "FAILED_PRECONDITION")
    local_api.ready("one", **attached())
    in_use = compute.refused("PATCH", f"{DISKS}/data", SHARED, **UPDATE)
    assert in_use == (400, "resourceInUseByAnotherResource")


@pytest.mark.parametrize(
    ("disk", "change"),
    [
        ({**ML, **SHARED}, {"accessMode": "READ_WRITE_SINGLE"}),
        ({"type": f"zones/{ZONE}/diskTypes/pd-balanced"}, SHARED),
        ({"type": f"zones/{ZONE}/diskTypes/hyperdisk-balanced"}, SHARED),
    ],
    ids=["shared for ever", "pd-balanced", "hyperdisk-balanced"],
)
def test_an_impossible_access_mode_is_refused(compute, disk, change):
    made(compute, **disk)
    assert compute.refused("PATCH", f"{DISKS}/data", change, **UPDATE) == (400, "invalid")
