"""The action tpu_fleet of create.yml and delete.yml: which TPUs it changes, and when it fails.

test_playbooks.py shows how the playbooks call it.
"""

import pytest
from ansible_collections.tpufleet.core.plugins.action import tpu_fleet
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.host_keys import (
    KnownHost,
    KnownHostsFile,
)

from harness.playbooks import OURS
from tests.collections.local_client import later_request, make
from tests.collections.running_actions import api_variable, run_action
from tests.collections.test_fleet import DEMO, SlowMachines, start_preemption
from tests.collections.test_host_keys import ED25519
from tests.localcloud.api.local_api import NODE, ZONE, LocalApi

V2_8 = {"accelerator_type": "v2-8", "runtime_version": "tpu-ubuntu2204-base"}
ZONES = ["us-central1-b", "us-central1-c"]
IN_ANY_ZONE = {"name": "demo", "zones": ZONES, **V2_8}
SOON = {**DEMO, "name": "soon", "accelerator_type": "v4-8", "queued": {}}


def run_fleet(local_api, *, fleet=(DEMO,), **options):
    """Run the action for a fleet file with these entries."""
    return run_action(tpu_fleet, api=api_variable(local_api), fleet=[*fleet], **options)


def refusal(local_api, **options):
    """Run the action, which must fail; return its error."""
    result = run_fleet(local_api, **options)
    assert result["failed"], result
    return result["msg"]


def delete(local_api, **options):
    """Delete in two steps as delete.yml does: first the plan, then only what the plan names."""
    plan = run_fleet(local_api, state="absent", check=True, **options)
    confirmed = [found["id"] for found in plan["to_delete"]]
    result = run_fleet(local_api, state="absent", confirmed=confirmed, **options)
    assert not result["failed"], result
    return result


def tpus(local_api):
    """Return the existing TPUs, each as ``zone/name``."""
    nodes = local_api.get("locations/-/nodes").get("nodes", [])
    return ["{3}/{5}".format(*node["name"].split("/")) for node in nodes]


def requests(local_api):
    """Return the existing queued resources."""
    return local_api.get("locations/-/queuedResources").get("queuedResources", [])


def ready_in(local_api, *zones):
    """Create a READY TPU demo of this fleet in each zone."""
    for zone in zones:
        local_api.ready("demo", zone, acceleratorType="v2-8", labels=OURS)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"only": ""}, "the name of the TPU is empty"),
        ({"only": "_us-central2-b"}, "the name of the TPU is empty"),
        ({"only": "_"}, "the name of the TPU is empty"),
        ({"zone": "us-central1-a"}, "was given without a TPU. Name the TPU: -e tpu=NAME"),
        ({"only": "dmeo"}, "no TPU 'dmeo' in the zones of the inventory. Existing TPUs: demo"),
        ({"only": "demo_us-east1-d"}, "no TPU 'demo' in zone us-east1-d. Existing TPUs: demo"),
    ],
    ids=[
        "empty name",
        "zone and empty name",
        "only a separator",
        "zone",
        "unknown name",
        "another zone",
    ],
)
def test_a_name_that_is_no_tpu_never_means_the_whole_fleet(local_api, options, reason):
    local_api.ready("demo", labels=OURS)

    assert reason in refusal(local_api, state="absent", **options)
    assert tpus(local_api) == [f"{ZONE}/demo"]


def test_deleting_the_whole_fleet_keeps_tpus_and_requests_that_it_did_not_create(local_api):
    local_api.ready("demo")
    later_request(local_api, "soon")

    tpu, request = delete(local_api, fleet=[DEMO, SOON])["warnings"]

    assert "TPU demo (us-central2-b) is not deleted, because this fleet did not create it" in tpu
    assert "queued resource soon (us-central2-b): this fleet did not create it" in request
    assert tpus(local_api) == [f"{ZONE}/demo"]
    assert len(requests(local_api)) == 1


def test_deleting_the_whole_fleet_keeps_requests_in_zones_that_the_fleet_file_does_not_have(
    local_api,
):
    later_request(local_api, "soon", labels=OURS)

    delete(local_api, fleet=[{**SOON, "zone": "us-east1-d"}])

    assert len(requests(local_api)) == 1


def test_the_whole_fleet_is_deleted_in_all_zones_of_an_entry_and_in_no_other(local_api):
    ready_in(local_api, *ZONES, "europe-west4-a")

    delete(local_api, fleet=[IN_ANY_ZONE])

    assert tpus(local_api) == ["europe-west4-a/demo"]


def test_the_host_keys_of_a_deleted_tpu_are_removed(local_api, tmp_path):
    node = local_api.ready("demo", labels=OURS)
    file = KnownHostsFile(tmp_path / "known_hosts")
    ours, other = f"{node['id']}-w0", "1-w0"
    file.add([KnownHost(alias, {"ssh-ed25519": ED25519}) for alias in (ours, other)])
    options = {"state": "absent", "known_hosts_file": str(file.path)}

    run_fleet(local_api, check=True, **options)
    assert sorted(file.read()) == sorted([ours, other])

    run_fleet(local_api, **options)
    assert list(file.read()) == [other]


def test_the_host_keys_of_an_unchanged_tpu_stay_and_check_mode_reads_none(api, local_api, tmp_path):
    node = local_api.ready("demo", labels=OURS)
    file, reported = KnownHostsFile(tmp_path / "known_hosts"), []
    options = {"known_hosts_file": str(file.path), "report": lambda *text: reported.append(text)}
    entries = (DEMO | {"labels": OURS}, DEMO | {"name": "missing"})

    results = make(api, *entries, check=True, **options)
    assert [(result.changed, result.warnings) for result in results] == [(False, ()), (True, ())]
    assert (file.path.exists(), reported) == (False, [])

    file.add([KnownHost(f"{node['id']}-w{i}", {"ssh-ed25519": ED25519}) for i in range(2)])
    before = file.read()
    make(api, DEMO | {"labels": OURS}, **options)
    assert file.read() == before


def test_a_delete_by_id_deletes_the_tpu(local_api):
    node = local_api.ready("demo", labels=OURS)

    delete(local_api, only="demo", zone=ZONE, node_id=node["id"])

    assert tpus(local_api) == []


def test_a_delete_by_id_succeeds_if_the_zone_does_not_have_the_tpu(local_api):
    node = local_api.ready("demo", labels=OURS)

    result = delete(local_api, only="demo", zone="us-central1-a", node_id=node["id"])

    assert not result["changed"]
    assert tpus(local_api) == [f"{ZONE}/demo"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"disks": True}, "disks can't be combined with node_id"),
        ({"node_id": ""}, "node_id is empty"),
        ({"node_id": "1234567890"}, "expected 1234567890). Nothing was deleted"),
    ],
)
def test_a_delete_by_id_deletes_no_disk_and_no_other_tpu(local_api, options, reason):
    node = local_api.ready("demo", labels=OURS)
    options = {"only": "demo", "zone": ZONE, "node_id": node["id"], **options}

    assert reason in refusal(local_api, state="absent", **options)
    assert local_api.node("demo") == node


def test_a_tpu_of_the_fleet_file_that_does_not_exist_counts_as_deleted(local_api):
    assert not delete(local_api, only="demo")["changed"]


def test_a_request_that_waits_for_its_tpu_is_deleted_by_name(local_api):
    later_request(local_api, "soon")

    delete(local_api, only="soon")

    assert requests(local_api) == []


@pytest.mark.parametrize(
    ("request_name", "name", "deleted"),
    [
        ("asked", "asked", "queued resource asked (us-central2-b, v4-16"),
        ("asked", "demo", "TPU demo (us-central2-b, v4-16, spot, PREEMPTED"),
        ("demo", "demo", "TPU demo (us-central2-b, v4-16, spot, PREEMPTED"),
    ],
)
def test_a_preempted_tpu_or_its_request_is_deleted_by_its_own_name(
    tmp_path, request_name, name, deleted
):
    machines = SlowMachines()
    local_api = LocalApi(tmp_path / "cloud", machines)
    local_api.queue(request_name, {"nodeId": "demo", "node": NODE}, spot={})
    local_api.state_is("demo", "READY")
    preemption = start_preemption(local_api)

    plan = run_fleet(local_api, state="absent", only=name, check=True)["to_delete"]

    machines.released.set()
    preemption.join()
    local_api.halt()
    assert len(plan) == 1
    assert plan[0]["description"].startswith(deleted)


def test_a_tpu_whose_name_others_have_too_is_deleted_by_name_and_zone(local_api):
    ready_in(local_api, *ZONES)
    later_request(local_api, "demo")

    ambiguous = refusal(local_api, state="absent", only="demo")
    delete(local_api, only=f"demo_{ZONES[0]}")

    assert "queued resource demo (us-central1-b, us-central1-c, us-central2-b). Name" in ambiguous
    assert tpus(local_api) == [f"{ZONES[1]}/demo"]
    assert len(requests(local_api)) == 1


@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_partial_list_stops_the_action_before_it_changes_anything(local_api, state):
    local_api.ready("old", labels=OURS)
    local_api.faults(unreachable=["us-east1-d"])
    before = local_api.log().count(" request POST /v2/")
    smaller = {**DEMO, "name": "old", "accelerator_type": "v4-8"}

    error = refusal(local_api, fleet=[smaller], state=state, recreate=True)

    assert "the list of TPUs is partial: no answer from us-east1-d" in error
    assert local_api.log().count(" request POST /v2/") == before
    local_api.faults(unreachable=[])
    assert local_api.node("old")["acceleratorType"] == "v4-16"


@pytest.mark.parametrize(
    "options", [{"state": "absent"}, {"recreate": True, "fleet": [{**DEMO, "spot": True}]}]
)
def test_a_tpu_that_the_user_has_not_confirmed_is_neither_deleted_nor_recreated(local_api, options):
    before = local_api.ready("demo", labels=OURS)

    error = refusal(local_api, confirmed=[], **options)

    assert "created after the list that you confirmed" in error
    assert local_api.node("demo")["id"] == before["id"]


def test_a_preempted_tpu_of_somebody_else_is_not_replaced(local_api):
    before = local_api.ready("demo", schedulingConfig={"spot": True})
    local_api.preempt("demo")
    local_api.state_is("demo", "PREEMPTED")

    error = refusal(local_api, fleet=[{**DEMO, "spot": True}], replace_dead=True)

    assert "this fleet did not create it" in error
    assert local_api.node("demo")["id"] == before["id"]


def test_a_request_of_somebody_else_is_not_used(local_api):
    later_request(local_api, "soon")

    error = refusal(local_api, fleet=[SOON], replace_dead=True, check=True)

    assert "this fleet did not create it" in error


def test_an_adopted_tpu_that_was_preempted_is_requested_again_without_the_label_of_its_request(
    tmp_path,
):
    machines = SlowMachines()
    local_api = LocalApi(tmp_path / "cloud", machines)
    local_api.queue("demo", {"nodeId": "demo", "node": NODE}, spot={})
    local_api.state_is("demo", "READY")
    fleet = [{**DEMO, "spot": True, "queued": {}}]
    run_fleet(local_api, fleet=fleet, adopt=True)
    preemption = start_preemption(local_api)

    result = run_fleet(local_api, fleet=fleet, replace_dead=True, check=True)

    machines.released.set()
    preemption.join()
    local_api.halt()
    assert not result["failed"], result
    assert result["changed"]


def test_an_unattended_creation_replaces_only_the_given_preempted_tpu(local_api):
    node = local_api.ready("demo", labels=OURS)
    options = {"only": "demo", "zone": ZONE, "replace_dead": True, "check": True}

    assert not run_fleet(local_api, node_id="12345", **options)["failed"]
    local_api.preempt("demo")
    local_api.state_is("demo", "PREEMPTED")
    assert "the TPU to replace has the id 12345" in refusal(local_api, node_id="12345", **options)
    assert run_fleet(local_api, node_id=node["id"], **options)["changed"]


def test_only_the_tpu_of_the_named_zone_is_recreated(local_api):
    ready_in(local_api, *ZONES)
    bigger = {**IN_ANY_ZONE, "accelerator_type": "v3-8"}
    options = {"only": f"demo_{ZONES[1]}", "recreate": True, "check": True}

    [recreated] = run_fleet(local_api, fleet=[bigger], **options)["to_delete"]

    assert recreated["description"].startswith(f"TPU demo ({ZONES[1]},")


def test_creating_in_one_zone_does_not_call_the_tpu_of_another_unwanted(local_api):
    ready_in(local_api, ZONES[0])

    result = run_fleet(local_api, fleet=[IN_ANY_ZONE], only=f"demo_{ZONES[1]}", check=True)

    assert not result["failed"], result
    assert result["unwanted"] == []


def test_a_tpu_that_the_fleet_did_not_create_is_not_called_unwanted(local_api):
    local_api.ready("old", labels=OURS)
    local_api.ready("theirs")

    unwanted = run_fleet(local_api, check=True)["unwanted"]

    assert [node["name"] for node in unwanted] == ["old"]


def test_a_zone_that_is_not_in_the_tpu_s_entry_is_refused(local_api):
    error = refusal(local_api, fleet=[IN_ANY_ZONE], only="demo_us-central2-b")

    assert "tpu_fleet, demo: zone us-central2-b is not in its zones (us-central1-b, us-c" in error
    assert tpus(local_api) == []


def test_an_adopted_tpu_keeps_its_id_labels_and_tags_and_gets_those_of_the_fleet_and_the_key(
    local_api, tmp_path
):
    before = local_api.ready("demo", labels={"owner": "ada"}, tags=["web"])
    key = tmp_path / "key.pub"
    key.write_text("ssh-ed25519 AAAA me\n")
    options = {"adopt": True, "tag": "ours", "ssh_user": "tpu", "ssh_public_key_file": str(key)}

    first, second = (run_fleet(local_api, **options) for _ in range(2))

    after = local_api.node("demo")
    assert after["id"] == before["id"]
    assert after["labels"] == {"owner": "ada", **OURS}
    assert after["tags"] == ["web", "ours"]
    assert "tpu:ssh-ed25519 AAAA me" in after["metadata"]["ssh-keys"]
    assert (first["changed"], second["changed"]) == (True, False)


def test_an_empty_list_of_tags_removes_those_of_the_tpu_except_the_fleet_s(local_api):
    local_api.ready("demo", labels=OURS, tags=["web"])

    run_fleet(local_api, fleet=[DEMO | {"tags": []}], tag="ours")

    assert local_api.node("demo")["tags"] == ["ours"]


def test_a_key_without_a_user_is_refused(local_api, tmp_path):
    key = tmp_path / "key.pub"
    key.write_text("ssh-ed25519 AAAA me\n")

    assert "ssh_user is empty" in refusal(local_api, ssh_public_key_file=str(key))
