"""Data disks: created on request, shared read-only, deleted only after a confirmation."""

import pytest
from ansible_collections.tpufleet.core.plugins.action import tpu_fleet
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.changes import ChangeOptions
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.disks import (
    DESCRIPTION_PREFIX,
    disk_type_for,
    missing_disks,
    owned_disks,
    read_disk,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.nodes import parse_node
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import TpuApi
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.cloud_tpus import CloudTpus
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import LABEL
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.reconcile import create
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.spec import parse_fleet

from harness.playbooks import OURS, output_of
from harness.scripted_api import PROJECT, ZONE, Reply, error, node
from tests.collections.local_client import changes, fleet_options, make
from tests.collections.running_actions import api_variable, run_action
from tests.collections.test_fleet import DEMO

CORPUS = {"name": "corpus", "size_gb": 50}
POD = DEMO | {"data_disks": [CORPUS], "labels": OURS}


def disk(api: TpuApi, name: str = "corpus"):
    return api.compute.get_disk(ZONE, name)


def make_disk(api: TpuApi, zone: str, description: str = DESCRIPTION_PREFIX) -> None:
    body = {"name": "corpus", "sizeGb": "50", "description": description, "labels": OURS}
    api.compute.insert_disk(zone, body, api.polling.deadline_in(20))


def test_tpus_that_share_a_disk_create_it_once_and_attach_it_read_only(api, local_api):
    shared = POD | {"name": "sweep", "count": 3}
    first, second = make(api, shared), make(api, shared)
    assert [result.changed for result in first + second] == [True] * 3 + [False] * 3
    assert disk(api)["sizeGb"] == "50"
    assert disk(api)["type"].endswith("/diskTypes/pd-balanced")
    (attached,) = local_api.node("sweep-2")["dataDisks"]
    assert attached["mode"] == "READ_ONLY"
    assert attached["sourceDisk"].endswith(f"zones/{ZONE}/disks/corpus")


def test_a_queued_tpu_gets_its_disk_too(api, local_api):
    scratch = {"name": "scratch", "size_gb": 20, "mode": "read-write"}
    entry = DEMO | {"accelerator_type": "v4-8", "queued": {}, "data_disks": [scratch]}
    (result,) = make(api, entry)
    assert not result.failed, result.msg
    assert local_api.node("demo")["dataDisks"][0]["mode"] == "READ_WRITE"


@pytest.mark.parametrize("damage", [{"sizeGb": "many"}, {"status": 3}, {"description": []}])
def test_a_malformed_disk_is_an_error_of_one_line(client, scripted, damage):
    scripted.handler = lambda _: Reply({"id": "1", "sizeGb": "50", "status": "READY"} | damage)
    with pytest.raises(errors.BadAnswer, match=r"disk corpus \(us-central2-b\): malformed"):
        read_disk(client.compute, ZONE, "corpus")


def test_a_plan_names_each_missing_disk_once(api):
    fleet = parse_fleet([POD | {"name": "sweep", "count": 2}, DEMO | {"data_disks": ["theirs"]}])
    choices = [tpu.specs[0] for tpu in fleet]

    (planned,) = missing_disks(api.compute, choices)
    make(api, POD | {"name": "sweep", "count": 2})

    assert planned["description"] == f"the disk corpus ({ZONE}, 50 GB, pd-balanced)"
    assert missing_disks(api.compute, choices) == []


def test_a_missing_disk_without_a_size_fails_with_googles_error(api):
    (result,) = make(api, DEMO | {"data_disks": ["nowhere"]})
    assert "nowhere" in result.msg
    assert result.reason == "not_found"


def test_a_disk_that_is_too_small_is_reported_with_the_fix(api):
    make(api, POD)
    (result,) = make(api, POD | {"name": "next", "data_disks": [CORPUS | {"size_gb": 80}]})
    assert "has 50 GB, expected 80" in result.msg
    assert "gcloud compute disks resize corpus --zone=us-central2-b --size=80GB" in result.msg


@pytest.mark.parametrize(
    ("kind", "written", "read"),
    [
        ("v3-8", "pd-balanced", "pd-balanced"),
        ("v5p-8", "pd-balanced", "pd-balanced"),
        ("v5litepod-8", "pd-balanced", "pd-balanced"),
        ("v6e-8", "hyperdisk-balanced", "hyperdisk-ml"),
        ("v7x-8", "hyperdisk-balanced", "hyperdisk-ml"),
    ],
)
def test_the_type_of_a_new_disk_depends_on_tpu_generation_and_mode(kind, written, read):
    assert disk_type_for(kind, writable=True) == written
    assert disk_type_for(kind, writable=False) == read


def test_a_failed_disk_operation_is_reported_with_its_error(client, scripted):
    failed = {
        "name": "op",
        "zone": f"https://x/zones/{ZONE}",
        "status": "DONE",
        "error": {"errors": [{"code": "X", "message": "The disk type is not for this zone"}]},
    }
    running = {**failed, "status": "RUNNING", "error": None}
    scripted.script = [*[error(404, "not found")] * 2, Reply(running), Reply(failed)]
    (result,) = create_without_listing(client, POD)
    assert "The disk type is not for this zone" in result.msg
    assert scripted.asked[-1].path.endswith(f"/zones/{ZONE}/operations/op")


def test_an_exceeded_disk_quota_fails_the_creation_and_leaves_no_tpu(api, local_api):
    full = {"method": "compute.disks.insert", "code": "QUOTA_EXCEEDED", "message": "Quota 'SSD'"}
    local_api.faults(outcomes=[full])
    (result,) = make(api, POD)
    assert result.reason == "quota"
    assert "Quota 'SSD'" in result.msg
    assert (api.list_nodes().entries, disk(api)) == ([], None)


def create_without_listing(api: TpuApi, entry):
    return create(CloudTpus(api), parse_fleet([entry]), {}, ChangeOptions())


def delete(local_api, *, disks: bool, check: bool = False, tpu: str = "demo", entry=POD):
    """Delete a TPU with the action that delete.yml uses; return descriptions of what is deleted."""
    options = {"api": api_variable(local_api), "fleet": [entry], "only": tpu, "disks": disks}
    result = run_action(tpu_fleet, state="absent", check=check, **options)
    assert not result["failed"], result
    return [found["description"] for found in result["to_delete"]]


def test_disks_are_deleted_with_their_tpu_only_on_request(environment, local_api, api, tmp_path):
    make(api, POD)
    delete(local_api, disks=False)
    assert disk(api) is not None
    options = (*fleet_options(tmp_path, POD), "-e", "tpu=demo", "-e", "disks=true")
    output_of(environment, "playbooks/delete.yml", *options, "-e", "yes=true")
    assert disk(api) is None


def test_no_disk_is_deleted_if_a_tpu_could_not_be_deleted(local_api, api):
    make(api, POD)
    local_api.faults(errors=[{"method": "nodes.delete", "code": 403}])

    options = {"api": api_variable(local_api), "fleet": [POD], "disks": True, "only": "demo"}
    assert run_action(tpu_fleet, state="absent", **options)["failed"]

    assert [line for line in changes(local_api, "disks") if line.startswith("DELETE")] == []


def test_a_disk_that_somebody_else_created_is_never_deleted(local_api, api):
    make_disk(api, ZONE, "")
    make(api, POD)
    delete(local_api, disks=True)
    assert (api.list_nodes().entries, disk(api) is None) == ([], False)


def test_a_disk_that_another_fleet_created_is_never_deleted(local_api, api):
    make(api, POD | {"name": "theirs", "labels": {LABEL: "another"}})
    local_api.ended(local_api.delete("theirs"))

    assert delete(local_api, disks=True, check=True) == []


@pytest.mark.parametrize(("mode", "failed"), [("read-write", True), ("read-only", False)])
def test_no_fleet_writes_to_the_disk_of_another_fleet(api, local_api, mode, failed):
    scratch = {"data_disks": [CORPUS | {"mode": mode}], "accelerator_type": "v4-8"}
    make(api, POD | scratch | {"name": "theirs", "labels": {LABEL: "another"}})
    local_api.ended(local_api.delete("theirs"))

    (result,) = make(api, POD | scratch)

    assert result.failed == failed
    assert ("belongs to the fleet 'another'" in result.msg) == failed


def test_only_the_disk_of_the_named_zone_is_deleted(local_api, api):
    zones = [ZONE, "us-east1-d"]
    for zone in zones:
        make_disk(api, zone)
    entry = {key: value for key, value in POD.items() if key != "zone"} | {"zones": zones}

    deleted = delete(local_api, disks=True, check=True, entry=entry, tpu=f"demo_{ZONE}")

    assert deleted == [f"the disk corpus ({ZONE}, 50 GB) and all its data"]


def test_a_disk_that_another_tpu_of_the_fleet_file_lists_is_not_deleted(local_api, api):
    make_disk(api, ZONE)
    local_api.ready("sweep-0")
    entry = POD | {"name": "sweep", "count": 2}

    [deleted] = delete(local_api, disks=True, check=True, entry=entry, tpu="sweep-0")

    assert deleted.startswith("TPU sweep-0")


@pytest.mark.parametrize("api_url", ["", "https://www.googleapis.com/compute/v1/"])
@pytest.mark.parametrize(("project", "owned"), [(PROJECT, ["corpus"]), ("shared-data", [])])
def test_an_attached_disk_of_another_project_is_not_owned(
    client, scripted, api_url, project, owned
):
    scripted.handler = lambda _: Reply(
        {"id": "1", "sizeGb": "50", "description": DESCRIPTION_PREFIX, "labels": OURS}
    )
    source = f"{api_url}projects/{project}/zones/{ZONE}/disks/corpus"
    attached = parse_node(node(dataDisks=[{"sourceDisk": source, "mode": "READ_ONLY"}]))

    assert [
        stored.name for stored in owned_disks(client.compute, [attached], [], fleet_name="default")
    ] == owned
