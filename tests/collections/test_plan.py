"""The plan of a fleet: TPUs to create, unwanted TPUs, quota, days of the grant, and bucket."""

from dataclasses import replace
from datetime import date

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.errors import NotConfigured
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.nodes import parse_node
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.queued_resource import (
    parse_queued_resource,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.session import ApiSettings
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.bucket_location import (
    bucket_warning,
    location_warning,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.observed import match
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import (
    LABEL,
    foreign_text,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.plan import make_plan, parse_date
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.spec import parse_fleet

from harness.scripted_api import Reply, error, node
from tests.collections.test_fleet import DEMO
from tests.collections.test_queued_resources import DEMO as WANTED
from tests.collections.test_queued_resources import TPU, request

TODAY = date(2026, 11, 21)


def planned(fleet, nodes=(), requests=(), **options):
    fleet = parse_fleet(fleet)
    observed = match(fleet, [parse_node(data) for data in nodes], ["-"])
    return make_plan(
        fleet, observed, [parse_queued_resource(data) for data in requests], today=TODAY, **options
    )


def foreign_to_mine(node):
    return foreign_text(node.labels, "mine")


def test_missing_tpus_are_counted_in_chips_per_quota():
    plan = planned([DEMO | {"name": "sweep", "count": 2, "spot": True}])
    assert [entry["name"] for entry in plan.missing] == ["sweep-0", "sweep-1"]
    assert plan.chips == [{"quota": "v4 spot in us-central2-b", "held": 0, "wanted": 16, "dead": 0}]


def test_a_complete_fleet_needs_nothing():
    plan = planned([DEMO], [node()])
    assert (plan.missing, plan.unwanted) == ([], [])
    assert "nothing to do: the fleet is as desired" in list(plan.lines())
    assert plan.chips[0]["held"] == 8


def test_a_missing_disk_is_a_line_of_its_own():
    plan = planned([DEMO], [node()], disks=[{"description": "the disk corpus (50 GB)"}])
    lines = list(plan.lines())
    assert "the disk corpus (50 GB) would be created" in lines
    assert "nothing to do: the fleet is as desired" not in lines


@pytest.mark.parametrize("state", ["PREEMPTED", "DELETING"])
def test_a_dead_tpu_would_be_recreated(state):
    plan = planned([DEMO], [node(state=state)])
    assert f"would be created: the existing one is {state}" in " ".join(plan.lines())


def test_a_preempted_tpu_holds_no_chips():
    plan = planned([DEMO], [node(state="PREEMPTED")])
    assert (plan.chips[0]["held"], plan.chips[0]["wanted"]) == (0, 8)


def test_different_and_unwanted_tpus_are_listed():
    lines = " ".join(planned([DEMO], [node(acceleratorType="v4-8"), node("old", id="2")]).lines())
    assert "exists but differs: accelerator_type is v4-8, expected v4-16" in lines
    assert "old (us-central2-b, v4-16, READY, 2 workers) exists and is not in the fleet" in lines


def test_a_second_tpu_of_an_entry_is_listed_with_the_zone_of_the_one_that_is_used():
    fleet = {key: value for key, value in DEMO.items() if key != "zone"}
    zones = ["us-east1-d", "us-central2-b"]
    nodes = [node(zone=zone) for zone in zones]
    lines = " ".join(planned([fleet | {"zones": zones}], nodes).lines())
    assert "(us-central2-b, v4-16, READY, 2 workers) exists and is not in the fleet: the " in lines
    assert "the fleet uses the TPU demo in us-east1-d" in lines


def test_foreign_tpus_are_marked_and_do_not_make_a_complete_fleet_incomplete():
    nodes = [node(labels={LABEL: "mine"}), node("old", id="2"), node("hers", labels={LABEL: "b"})]
    lines = list(planned([DEMO], nodes, foreign_text=foreign_to_mine).lines())
    where = "(us-central2-b, v4-16, READY, 2 workers) is foreign"
    assert f"TPU old {where}: it has no label tpufleet-fleet" in lines
    assert f"TPU hers {where}: it belongs to the fleet 'b', not to mine" in lines
    assert "chips v4 on demand in us-central2-b: 24 held, 0 more wanted" in lines
    assert "nothing to do: the fleet is as desired" in lines


@pytest.mark.parametrize("state", ["READY", "PREEMPTED"])
def test_a_foreign_tpu_of_the_fleet_file_is_not_as_desired_and_not_replaced(state):
    plan = planned([DEMO], [node(state=state)], foreign_text=foreign_to_mine)
    assert plan.different[0]["why"] == "it has no label tpufleet-fleet"
    assert (plan.foreign, plan.missing) == ([], [])


def test_a_tpu_takes_the_place_of_a_foreign_one_that_is_being_deleted():
    plan = planned([DEMO], [node(state="DELETING")], foreign_text=foreign_to_mine)
    assert [entry["why"] for entry in plan.missing] == ["the existing one is DELETING"]


def test_a_dead_request_is_named_with_its_chips_and_the_command_that_removes_it():
    failed = request("FAILED", failedData={"error": {"code": 8, "message": "no more capacity"}})
    plan = planned([], [], [failed])
    assert plan.chips == [{"quota": "v4 spot in us-central2-b", "held": 0, "wanted": 0, "dead": 4}]
    assert plan.warnings == (
        "queued resource demo (us-central2-b) is FAILED and holds the quota of 4 chips: "
        "ansible-playbook playbooks/delete.yml -e tpu=demo -e zone=us-central2-b",
    )
    assert "has no TPU any more but still holds quota: no more capacity" in " ".join(plan.lines())


def test_the_dead_request_of_a_preempted_tpu_holds_quota_and_its_tpu_needs_more():
    fleet = [DEMO | {"accelerator_type": "v4-8", "spot": True}]
    plan = planned(fleet, [node(state="PREEMPTED")], [request("SUSPENDED")])
    assert plan.chips == [{"quota": "v4 spot in us-central2-b", "held": 0, "wanted": 4, "dead": 4}]


def test_a_waiting_request_is_listed_and_a_fulfilled_one_is_not():
    spec = replace(WANTED, name="soon", tpu=replace(TPU, name="soon"))
    plan = planned([], [node()], [request(), request("ACCEPTED", spec=spec)])
    assert [entry["name"] for entry in plan.waiting_requests] == ["soon"]
    assert plan.dead_requests == []


def test_a_waiting_request_holds_quota_and_its_tpu_needs_no_more():
    fleet = [DEMO | {"accelerator_type": "v4-8", "spot": True}, DEMO | {"name": "other"}]
    plan = planned(fleet, [], [request("WAITING_FOR_RESOURCES")])
    assert plan.chips == [
        {"quota": "v4 on demand in us-central2-b", "held": 0, "wanted": 8, "dead": 0},
        {"quota": "v4 spot in us-central2-b", "held": 4, "wanted": 0, "dead": 0},
    ]


@pytest.mark.parametrize(
    ("end_date", "days_left", "warned"),
    [
        ("2026-12-31", 40, []),
        ("2026-11-28", 7, ["ends in 7 days"]),
        ("2026-11-22", 1, ["ends in 1 day "]),
        ("2026-11-21", 0, ["ends in 0 days"]),
        ("2026-11-20", -1, []),
    ],
)
def test_the_plan_counts_the_days_of_the_grant_and_warns_from_seven_days_on(
    end_date, days_left, warned
):
    plan = planned([DEMO], [node()], grant_ends=parse_date(end_date))
    assert (plan.days_left, bool(plan.errors)) == (days_left, days_left < 0)
    assert len(plan.warnings) == len(warned)
    assert all(text in plan.warnings[0] for text in warned)


def test_an_invalid_date_is_named():
    with pytest.raises(NotConfigured, match="grant_ends: expected a date"):
        parse_date("soon")
    assert parse_date("") is None


def test_a_grant_that_has_ended_is_an_error():
    plan = planned([DEMO], [node()], grant_ends=parse_date("2026-11-20"))
    (late,) = plan.errors
    assert late.startswith("the grant ended 1 day ago (2026-11-20)")
    assert "the grant ended 1 day ago" in list(plan.lines())


BUCKETS = [
    ({"location": "US-CENTRAL2"}, ""),
    ({"location": "US"}, ""),
    ({"location": "EUROPE-WEST4"}, "bucket mine is in europe-west4, but TPUs are in us-central2"),
    ({"location": "EU"}, "TPUs are in us-central2"),
    ({"location": "NAM4"}, "TPUs are in us-central2"),
    (
        {"location": "US", "customPlacementConfig": {"dataLocations": ["US-CENTRAL2", "US-EAST1"]}},
        "",
    ),
    ({}, ""),
]


@pytest.mark.parametrize(("bucket", "message"), BUCKETS)
def test_a_bucket_in_another_region_is_reported(bucket, message):
    warning = location_warning("mine", bucket, ["us-central2-b"])
    assert message in warning
    assert bool(message) == bool(warning)


def test_the_location_of_a_bucket_is_read_from_the_emulator_without_credentials(
    scripted, monkeypatch
):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", scripted.endpoint)
    scripted.script = [Reply({"location": "EUROPE-WEST4"})]
    settings = ApiSettings.of(scripted.api)
    assert "europe-west4" in bucket_warning(settings, "gs://mine/prefix", ["us-central2-b"])
    (http_request,) = scripted.asked
    assert (http_request.path, http_request.authorization) == ("/storage/v1/b/mine", "")


def test_a_bucket_whose_location_cannot_be_read_is_a_warning(scripted, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", scripted.endpoint)
    scripted.script = [error(404, "The specified bucket does not exist.")]
    warning = bucket_warning(ApiSettings.of(scripted.api), "gs://mine", ["us-central2-b"])
    assert "The specified bucket does not exist" in warning


def test_the_key_of_a_local_cloud_is_never_sent_to_googles_storage(scripted, monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    assert bucket_warning(ApiSettings.of(scripted.api), "gs://mine", ["us-central2-b"]) == ""
