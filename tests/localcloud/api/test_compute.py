"""The Compute API: its methods, messages, operations and errors."""

import re
import uuid

import requests

from tests.localcloud.api import google_schema
from tests.localcloud.api.compute_caller import HERE
from tests.localcloud.api.local_api import ZONE
from tests.localcloud.api.test_google_client import service

OPERATIONS = f"zones/{ZONE}/operations"
DISKS = f"zones/{ZONE}/disks"
MACHINES = f"zones/{ZONE}/machineTypes"
RULE = {"name": "ssh", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}


def routes(api):
    return [route for route in api.server.routes if route.name.startswith("compute.")]


def test_every_compute_method_has_the_documented_verb_path_and_parameters(shared_api):
    documented = {method.name: method for method in google_schema.methods("compute")}

    for route in routes(shared_api):
        method = documented[route.name]
        path = re.sub(r"\{\w+\}", "x", route.template)
        assert method.verb == route.verb and method.pattern.fullmatch(path), route.name
        # Google accepts returnPartialSuccess on all lists, and gcloud sends it, but the discovery
        # document does not contain it.
        assert frozenset(route.query) - {"returnPartialSuccess"} == method.query, route.name


def test_every_compute_methods_answer_matches_the_document(local_api, compute):
    region = "regions/us-central2"
    compute.done("POST", "global/networks", {"name": "other"})
    compute.done("POST", "global/firewalls", RULE)
    compute.done("PATCH", "global/firewalls/ssh", {"priority": 0})
    compute.done("PUT", "global/firewalls/ssh", RULE)
    compute.done("POST", DISKS, {"name": "data", "sizeGb": "10"})
    compute.done("POST", f"{DISKS}/data/resize", {"sizeGb": "20"})
    label_fingerprint = compute.get(f"{DISKS}/data")["labelFingerprint"]
    labels = {"labels": {"a": "b"}, "labelFingerprint": label_fingerprint}
    compute.done("POST", f"{DISKS}/data/setLabels", labels)
    shared = {"name": "shared", "type": f"zones/{ZONE}/diskTypes/hyperdisk-ml"}
    compute.done("POST", DISKS, shared)
    mode = {"accessMode": "READ_ONLY_MANY"}
    compute.done("PATCH", f"{DISKS}/shared", mode, paths="accessMode")
    fingerprint = compute.get("")["commonInstanceMetadata"]["fingerprint"]
    compute.done("POST", "setCommonInstanceMetadata", {"fingerprint": fingerprint})
    for path in (
        *("global/networks", "global/networks/default", f"{region}/subnetworks", "zones"),
        *("global/firewalls", "global/firewalls/ssh", f"{region}/subnetworks/default", "regions"),
        *(DISKS, f"{DISKS}/data", "aggregated/disks", f"zones/{ZONE}", region),
        *(f"zones/{ZONE}/diskTypes", f"zones/{ZONE}/diskTypes/pd-ssd"),
        *(MACHINES, f"{MACHINES}/ct6e-standard-4t"),
        *("aggregated/machineTypes", "aggregated/subnetworks"),
        *("global/operations", f"zones/{ZONE}/operations", f"{region}/operations"),
    ):
        compute.get(path)
    compute.done("DELETE", f"{DISKS}/data")
    compute.done("DELETE", "global/firewalls/ssh")
    compute.done("DELETE", "global/networks/other")
    for scope in ("global", f"zones/{ZONE}"):
        operation = compute.get(f"{scope}/operations")["items"][0]["name"]
        compute.get(f"{scope}/operations/{operation}")
        compute.call("DELETE", f"{scope}/operations/{operation}")

    # The local cloud has no regional operations, because no method changes a region.
    regional = {f"compute.regionOperations.{verb}" for verb in ("get", "wait", "delete")}
    assert {name for _, name in local_api.verified} == {
        item.name for item in routes(local_api)
    } - regional


def test_an_operation_is_running_before_it_is_done_and_its_id_is_a_string(compute):
    started = compute.call("POST", "global/firewalls", RULE).json()
    ended = compute.done("DELETE", "global/firewalls/ssh")

    assert (started["status"], started["progress"]) == ("RUNNING", 0)
    assert (ended["status"], ended["progress"]) == ("DONE", 100)
    assert started["targetLink"].endswith("/projects/local-fleet/global/firewalls/ssh")
    assert int(started["id"]) != int(ended["id"])
    assert started["operationType"] == "insert"


def test_two_requests_with_the_same_id_have_one_effect(compute):
    request_id = str(uuid.uuid4())

    first = compute.call("POST", "global/firewalls", RULE, requestId=request_id).json()
    second = compute.call("POST", "global/firewalls", RULE, requestId=request_id).json()
    other = {**RULE, "name": "b"}

    assert first["name"] == second["name"]
    reused = compute.refused("POST", "global/firewalls", other, requestId=request_id)
    assert reused == (400, "invalid")
    assert compute.refused("POST", "global/firewalls", RULE) == (409, "alreadyExists")
    assert compute.refused("POST", DISKS, {"name": "d"}, requestId="twice") == (400, "invalid")


def test_lists_have_pages_filters_and_an_order(compute):
    for name in ("c", "a", "b"):
        compute.done("POST", DISKS, {"name": name, "sizeGb": "10"})

    assert compute.names(DISKS, maxResults=2) == ["a", "b", "c"]
    assert compute.names(DISKS, filter="name=b") == ["b"]
    assert compute.names(DISKS, filter="(name = c)") == ["c"]
    assert compute.names(DISKS, filter=r'name eq ".*\bc\b.*"') == ["c"]
    assert compute.names(DISKS, filter="(name ne a)") == ["b", "c"]
    assert compute.refused("GET", DISKS, filter="colour=red") == (400, "invalid")
    assert compute.refused("GET", DISKS, filter='name eq "("') == (400, "invalid")
    assert compute.refused("GET", DISKS, filter="colour eq red") == (400, "invalid")
    assert compute.refused("GET", DISKS, maxResults="many") == (400, "invalid")
    assert compute.refused("GET", DISKS, maxResults=501) == (400, "invalid")
    assert compute.refused("GET", DISKS, pageToken="nonsense") == (400, "invalid")

    # Compute sorts only by name or newest first.
    operations = compute.get(OPERATIONS, orderBy="creationTimestamp desc")["items"]
    assert compute.names(DISKS, orderBy="name") == ["a", "b", "c"]
    assert compute.names(DISKS, orderBy="creationTimestamp desc", maxResults=1) == ["b", "a", "c"]
    assert [item["targetLink"].rpartition("/")[2] for item in operations] == ["b", "a", "c"]
    for order in ("sizeGb", "creationTimestamp", "name sideways", "name,creationTimestamp desc"):
        assert compute.refused("GET", DISKS, orderBy=order) == (400, "invalid")


def test_errors_of_projects_resources_and_tokens_have_computes_format(shared_api, shared_compute):
    foreign = shared_api.call("GET", "/compute/v1/projects/other/global/networks").json()["error"]
    without_token = requests.get(f"{shared_api.endpoint}{HERE}", timeout=20).json()["error"]

    assert foreign["errors"][0]["reason"] == "forbidden"
    assert "compute.networks.list" in foreign["message"]
    assert shared_compute.refused("GET", "global/networks/none") == (404, "notFound")
    assert shared_compute.refused("GET", "global/nothing") == (404, "notFound")
    assert shared_compute.refused("GET", "zones/nowhere-a/disks") == (404, "notFound")
    assert shared_compute.refused("GET", "regions/nowhere/subnetworks") == (404, "notFound")
    assert (without_token["code"], without_token["errors"][0]["reason"]) == (401, "authError")


def test_a_fault_applies_to_the_named_compute_method_or_zone(local_api, compute):
    error = {"method": "compute.firewalls.insert", "code": 503, "times": 1}
    local_api.faults(errors=[error], unreachable=[ZONE])

    assert compute.refused("POST", "global/firewalls", RULE) == (503, "backendError")
    assert compute.refused("GET", DISKS) == (503, "backendError")
    everywhere = compute.get("aggregated/disks")
    assert everywhere["unreachables"][0].endswith(f"/zones/{ZONE}")
    assert everywhere["items"][f"zones/{ZONE}"]["warning"]["code"] == "UNREACHABLE"
    compute.done("POST", "global/firewalls", RULE)


def test_an_outcome_fault_fails_an_operation_with_its_error_and_changes_nothing(local_api, compute):
    failing = {"method": "compute.disks.*", "code": "QUOTA_EXCEEDED", "times": 1, "zone": ZONE}
    local_api.faults(outcomes=[failing])

    ended = compute.done("POST", DISKS, {"name": "one", "sizeGb": "10"})

    assert [item["code"] for item in ended["error"]["errors"]] == ["QUOTA_EXCEEDED"]
    assert compute.refused("GET", f"{DISKS}/one") == (404, "notFound")
    assert "error" not in compute.done("POST", DISKS, {"name": "one", "sizeGb": "10"})
    assert compute.get(f"{DISKS}/one")["sizeGb"] == "10"


def test_machine_types_and_their_chips_are_listed_for_one_or_all_zones(shared_compute):
    machine_type = shared_compute.get(f"{MACHINES}/ct6e-standard-8t")
    filtered = shared_compute.names(MACHINES, filter="name=ct6e-*", orderBy="name", maxResults=1)
    everywhere = shared_compute.get("aggregated/machineTypes", filter="name=ct5p-hightpu-4t")

    chips = {"guestAcceleratorType": "ct6e", "guestAcceleratorCount": 8}
    assert machine_type["accelerators"] == [chips]
    assert (machine_type["guestCpus"], machine_type["memoryMb"]) == (360, 1440 * 1024)
    assert machine_type["zone"] == ZONE
    assert filtered == ["ct6e-standard-1t", "ct6e-standard-4t", "ct6e-standard-8t"]
    (found,) = everywhere["items"][f"zones/{ZONE}"]["machineTypes"]
    assert found["name"] == "ct5p-hightpu-4t"
    assert shared_compute.refused("GET", f"{MACHINES}/floppy-1t") == (404, "notFound")


def test_the_aggregated_list_of_subnetworks_is_grouped_by_region(compute):
    compute.done("POST", "global/networks", {"name": "other"})
    compute.done("POST", "global/networks", {"name": "bare", "autoCreateSubnetworks": False})

    items = compute.get("aggregated/subnetworks")["items"]
    filtered = compute.get("aggregated/subnetworks", filter="name=nothing")["items"]
    page = compute.get("aggregated/subnetworks", maxResults=1)

    subnetworks = items["regions/us-central2"]["subnetworks"]
    assert [subnet["name"] for subnet in subnetworks] == ["default", "other"]
    assert compute.names("regions/us-central2/subnetworks") == ["default", "other"]
    assert "subnetworks" not in compute.get("global/networks/bare")
    assert filtered["regions/us-central2"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    assert [len(item["subnetworks"]) for item in page["items"].values()] == [1]
    assert page["nextPageToken"]


def test_changing_the_projects_metadata_needs_the_current_fingerprint(compute):
    before = compute.get("")["commonInstanceMetadata"]["fingerprint"]
    items = [{"key": "ssh-keys", "value": "me:ssh-ed25519 AAAA me"}]

    compute.done("POST", "setCommonInstanceMetadata", {"fingerprint": before, "items": items})

    after = compute.get("")["commonInstanceMetadata"]
    stale = {"fingerprint": before, "items": []}
    assert compute.refused("POST", "setCommonInstanceMetadata", stale) == (412, "conditionNotMet")
    assert compute.refused("POST", "setCommonInstanceMetadata", {}) == (412, "conditionNotMet")
    twice = {"fingerprint": after["fingerprint"], "items": items * 2}
    assert compute.refused("POST", "setCommonInstanceMetadata", twice) == (400, "invalid")
    assert after["items"] == items and after["fingerprint"] != before


def test_googles_python_client_creates_gets_changes_and_deletes(local_api):
    client = service(local_api, "v1", "compute", "/compute/v1/")
    project = {"project": "local-fleet"}

    started = client.firewalls().insert(**project, body=RULE).execute()
    ended = client.globalOperations().wait(**project, operation=started["name"]).execute()
    listed, request = [], client.firewalls().list(**project, maxResults=1)
    while request is not None:
        answer = request.execute()
        listed += [rule["name"] for rule in answer["items"]]
        request = client.firewalls().list_next(request, answer)
    location = {**project, "zone": ZONE}
    client.disks().insert(**location, body={"name": "d", "sizeGb": 10}).execute()

    assert ended["status"] == "DONE"
    assert listed[-1] == "ssh" and "default-allow-ssh" in listed
    assert client.disks().get(**location, disk="d").execute()["sizeGb"] == "10"
    assert client.projects().get(**project).execute()["name"] == "local-fleet"
