"""The fleet file: its validation, and the TPUs that it creates."""

import threading

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.changes import ChangeOptions
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.nodes import parse_node
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.queued_resource import (
    parse_queued_resource,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import TpuApi
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.cloud_tpus import CloudTpus
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.observed import match
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.reconcile import (
    create,
    delete,
    delete_requests,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.spec import parse_fleet, select

from harness.scripted_api import PROJECT, ZONE, Reply, error, node
from tests.collections.local_client import cloud_of, make, present
from tests.collections.test_queued_resources import refuse, request
from tests.localcloud.api.local_api import LocalApi
from tests.localcloud.api.machines_in_memory import MachinesInMemory

QUEUE = f"projects/{PROJECT}/locations/{ZONE}/queuedResources"

DEMO = {
    "name": "demo",
    "zone": "us-central2-b",
    "accelerator_type": "v4-16",
    "runtime_version": "tpu-ubuntu2204-base",
}


WRITABLE = {"name": "d", "mode": "read-write"}
SEVERAL = {key: value for key, value in DEMO.items() if key != "zone"} | {
    "zones": ["us-east1-d", "us-central2-b"]
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acelerator_type": "v4-8"}, "'acelerator_type', did you mean accelerator_type?"),
        ({"name": None}, "entry 1: name is missing"),
        ({"name": "Demo"}, "invalid TPU name ('Demo')"),
        ({"zone": "-"}, "invalid zone ('-')"),
        ({"zones": ["us-east1-d"]}, "set either zone or zones"),
        ({"count": 0}, "a whole number above 0 (0)"),
        ({"count": True}, "a whole number above 0 (True)"),
        ({"spot": "yes"}, "spot: expected true or false ('yes')"),
        ({"spot": True, "preemptible": True}, "set only one of spot"),
        ({"labels": {"n": 1}}, "quote numbers, true and false"),
        ({"tags": "ssh"}, "tags: expected a list of strings ('ssh')"),
        ({"data_disks": [{"name": "d", "mode": "rw"}]}, "({'name': 'd'"),
        ({"data_disks": [1]}, "size_gb and type (1)"),
        ({"data_disks": [{"name": "d", "size_gb": "50"}]}, "data_disks: expected"),
        ({"data_disks": [{"name": "d", "size_gb": -1}]}, "needs a size_gb above 0"),
        ({"data_disks": [{"name": "d", "type": "pd-ssd"}]}, "needs a size_gb above 0"),
        ({"data_disks": [{"name": "a/d", "size_gb": 5}]}, "can't have a size_gb"),
        ({"data_disks": [WRITABLE]}, "its 2 workers can share the disk d only"),
        (
            {"accelerator_type": "v4-8", "count": 2, "data_disks": [WRITABLE]},
            "demo-0, demo-1 can share the disk d",
        ),
        ({"runtime_version": None}, "runtime_version is missing"),
        ({"queued": True}, "queued: expected e.g. {valid_for: 6h} (True)"),
        ({"queued": {"valid_for": "long"}}, "queued: valid_for: expected a duration"),
        ({"queued": {"until": "6h"}}, "({'until': '6h'})"),
        ({"queued": {}, "reserved": True}, "queued can't be combined with reserved"),
        ({"idle_delete_after": "soon"}, "demo: idle_delete_after: expected a duration"),
    ],
)
def test_a_mistake_in_the_fleet_file_is_named(change, message):
    with pytest.raises(errors.NotConfigured) as caught:
        parse_fleet([DEMO | change])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fleet", "message"),
    [
        (None, "tpu_fleet is not a list"),
        (["demo"], "entry 1: expected a mapping"),
        ([DEMO, DEMO], "two TPUs have the name demo"),
        ([SEVERAL | {"queued": {}}], "queued needs one zone"),
    ],
)
def test_an_invalid_fleet_file_is_refused(fleet, message):
    with pytest.raises(errors.NotConfigured, match=message):
        parse_fleet(fleet)


def test_an_unknown_fleet_entry_is_reported_with_the_existing_ones():
    with pytest.raises(errors.NotConfigured, match=r"no TPU 'dmeo'; it has demo"):
        select(parse_fleet([DEMO]), "dmeo")


@pytest.mark.parametrize("state", ["PREEMPTED", "DELETING"])
def test_a_living_tpu_is_preferred_to_a_dead_one_in_an_earlier_zone(state):
    fleet = parse_fleet([SEVERAL])
    nodes = [parse_node(node(zone="us-east1-d", state=state)), parse_node(node(id="2"))]
    assert match(fleet, nodes, ["-"]).present["demo"].zone == "us-central2-b"


@pytest.mark.parametrize("order", [1, -1])
def test_the_tpu_in_the_first_zone_of_an_entry_is_used_and_a_second_one_is_reported(order):
    nodes = [parse_node(node(zone=zone)) for zone in SEVERAL["zones"]]

    matched = match(parse_fleet([SEVERAL]), nodes[::order], ["-"])

    assert (matched.present["demo"], matched.unwanted) == (nodes[0], (nodes[1],))
    why = matched.unwanted_description(nodes[1])["why"]
    assert why == "the fleet uses the TPU demo in us-east1-d"


def test_a_zone_that_the_inventory_does_not_list_is_an_error():
    unlisted = r"does not list the zone us-central2-b.*tpu\.yml"
    with pytest.raises(errors.NotConfigured, match=unlisted):
        match(parse_fleet([DEMO]), [], ["us-east1-d"])


def test_create_waits_for_capacity_until_the_timeout(client, scripted, clock):
    full = {"done": True, "error": {"code": 8, "message": "There is no more capacity"}}
    gone = error(404, "not found")
    scripted.handler = lambda asked: Reply(full) if asked.method == "POST" else gone
    options = ChangeOptions(wait_for_capacity=60)
    (result,) = create(CloudTpus(client), parse_fleet([DEMO]), {}, options)
    assert (result.reason, clock.now) == ("capacity", 60)


def test_one_tpu_that_fails_leaves_the_others_alone(api):
    good, bad = make(api, DEMO, DEMO | {"name": "odd", "accelerator_type": "v4-17"})
    assert (good.failed, bad.failed) == (False, True)
    assert "v4-17" in bad.msg


SPOT = DEMO | {"accelerator_type": "v4-8", "spot": True, "queued": {"valid_for": "6h"}}


def make_queued(api: TpuApi, entry=SPOT, **options):
    """Create the TPU as create.yml does if no TPU needs a confirmation."""
    (result,) = make(api, entry, **{"replace_dead": True, "confirmed": ()} | options)
    return result


def make_queued_ready(api: TpuApi, *arguments, **options):
    result = make_queued(api, *arguments, **options)
    assert not result.failed, result.msg
    return result


def test_a_queued_tpu_is_requested_once_and_deleted_with_its_request(api, local_api):
    assert [make_queued_ready(api).changed, make_queued_ready(api).changed] == [True, False]
    (request,) = api.list_queued_resources()
    assert request["queueingPolicy"] == {"validUntilDuration": "21600s"}
    assert local_api.node("demo")["schedulingConfig"] == {"spot": True}
    nodes = list(present(api, SPOT).values())
    (deletion,) = delete(CloudTpus(api), nodes, ChangeOptions(timeout=20))
    assert not deletion.failed
    assert (api.list_nodes().entries, api.list_queued_resources()) == ([], [])


def preempt(local_api: LocalApi) -> None:
    """Preempt the TPU and wait until its queued resource is SUSPENDED."""
    local_api.preempt("demo")
    local_api.queued("demo", "SUSPENDED")


def delete_node(local_api: LocalApi) -> None:
    local_api.ended(local_api.delete("demo"))


@pytest.mark.parametrize("lose", [preempt, delete_node])
def test_a_queued_tpu_that_was_preempted_or_deleted_is_requested_again(api, local_api, lose):
    first = make_queued_ready(api)
    lose(local_api)
    second = make_queued_ready(api)
    assert second.node.state == "READY"
    assert second.node.id != first.node.id


def test_a_preempted_tpu_that_had_no_request_is_requested(api, local_api):
    first = make_queued_ready(api, {**SPOT, "queued": None})
    local_api.preempt("demo")
    local_api.state_is("demo", "PREEMPTED")

    second = make_queued_ready(api)

    assert second.node.state == "READY"
    assert second.node.id != first.node.id


class SlowMachines(MachinesInMemory):
    """Machines that are deleted only after ``released`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def delete(self, name: str) -> None:
        self.released.wait(20)
        super().delete(name)


def start_preemption(local_api: LocalApi) -> threading.Thread:
    """Preempt the TPU demo in a thread, which ends when its machines are deleted."""
    url = f"{local_api.endpoint}/_localcloud/nodes/demo:preempt"
    thread = threading.Thread(target=local_api.new_session().post, args=(url,))
    thread.start()
    local_api.state_is("demo", "PREEMPTED")
    return thread


def test_a_preempted_tpu_is_requested_again_even_while_its_request_is_still_active(tmp_path):
    machines, seen = SlowMachines(), []
    local_api = LocalApi(tmp_path / "cloud", machines)
    api = cloud_of(local_api)
    first = make_queued_ready(api)
    preemption = start_preemption(local_api)
    assert api.get_queued_resource("us-central2-b", "demo")["state"]["state"] == "ACTIVE"

    def report(_name: str, state: str) -> None:
        seen.append(state)
        machines.released.set()

    second = make_queued_ready(api, report=report)

    preemption.join()
    local_api.halt()
    assert (seen[0], seen[-1]) == ("PREEMPTED", "READY")
    assert second.node.id != first.node.id


def test_the_wait_for_a_request_to_become_suspended_ends_at_the_timeout(client, scripted):
    lost = node(state="PREEMPTED", acceleratorType="v4-8", queuedResource=f"{QUEUE}/demo")
    active = request()
    scripted.handler = lambda it: Reply(active if "/queuedResources/" in it.path else lost)
    options = ChangeOptions(timeout=60, replace_dead=True)

    (result,) = create(CloudTpus(client), parse_fleet([SPOT]), {"demo": parse_node(lost)}, options)

    assert (result.reason, set(scripted.methods())) == ("deadline", {"GET"})
    assert "queued resource demo (us-central2-b) to be SUSPENDED (it is still ACTIVE)" in result.msg


def test_a_preempted_queued_tpu_is_not_replaced_without_replace_dead(api, local_api):
    make_queued_ready(api)
    preempt(local_api)

    result = make_queued(api, replace_dead=False)

    assert result.reason == "different"
    assert len(api.list_queued_resources()) == 1


BIGGER = SPOT | {"accelerator_type": "v4-16"}


@pytest.mark.parametrize(
    ("entry", "requests"), [(BIGGER, 1), ({**BIGGER, "queued": None}, 0)], ids=["queued", "direct"]
)
def test_recreating_a_tpu_deletes_the_request_of_the_old_one(api, entry, requests):
    first = make_queued_ready(api)
    (before,) = api.list_queued_resources()

    second = make_queued_ready(api, entry, recreate=True, confirmed=frozenset({first.node.id}))

    assert second.node.accelerator_type == "v4-16"
    assert second.replaced.id == first.node.id
    after = api.list_queued_resources()
    assert len(after) == requests
    assert before["createTime"] not in [resource["createTime"] for resource in after]


@pytest.mark.parametrize("options", [{"recreate": False, "confirmed": None}, {"recreate": True}])
def test_a_queued_tpu_that_differs_is_not_recreated_without_consent(api, local_api, options):
    first = make_queued_ready(api)

    result = make_queued(api, BIGGER, **options)

    assert result.reason == "different"
    assert local_api.node("demo")["id"] == first.node.id
    assert len(api.list_queued_resources()) == 1


def test_the_deletion_of_a_preempted_tpu_with_its_request_needs_no_confirmation(client, scripted):
    lost = node(state="PREEMPTED", queuedResource=f"{QUEUE}/demo")
    scripted.handler = lambda _: Reply(lost)
    options = ChangeOptions(replace_dead=True, confirmed=(), check=True)

    (result,) = create(CloudTpus(client), parse_fleet([DEMO]), {"demo": parse_node(lost)}, options)

    assert result.changed, result.msg


def test_check_mode_of_recreating_a_queued_tpu_changes_nothing(api, local_api):
    first = make_queued_ready(api)

    result = make_queued_ready(api, BIGGER, recreate=True, confirmed=None, check=True)

    assert (result.changed, result.after["accelerator_type"]) == (True, "v4-16")
    assert local_api.node("demo")["id"] == first.node.id


def test_a_single_slice_of_a_multislice_is_not_recreated(client, scripted):
    existing = node(queuedResource=f"{QUEUE}/several", multisliceNode=True)
    scripted.handler = lambda _: Reply(existing)
    nodes, options = {"demo": parse_node(existing)}, ChangeOptions(recreate=True)

    (result,) = create(CloudTpus(client), parse_fleet([SPOT]), nodes, options)

    assert "is one slice of queued resource several" in result.msg
    assert set(scripted.methods()) <= {"GET"}


@pytest.mark.parametrize(
    ("entry", "existing"),
    [
        (SPOT, node(queuedResource=f"{QUEUE}/demo", acceleratorType="v4-16")),
        (SPOT | {"queued": {}}, node(state="PREEMPTED")),
    ],
    ids=["different", "preempted"],
)
def test_a_queued_tpu_of_another_owner_is_not_replaced(client, scripted, entry, existing):
    scripted.handler = lambda _: Reply(existing)
    nodes = {"demo": parse_node(existing)}
    options = ChangeOptions(recreate=True, check_owner=refuse)

    (result,) = create(CloudTpus(client), parse_fleet([entry]), nodes, options)

    assert "is not ours" in result.msg
    assert set(scripted.methods()) <= {"GET"}


def test_a_queued_tpu_that_is_being_deleted_is_requested_again(tmp_path):
    machines = SlowMachines()
    local_api = LocalApi(tmp_path / "cloud", machines)
    api = cloud_of(local_api)
    first = make_queued_ready(api)
    local_api.delete("demo")
    local_api.state_is("demo", "DELETING")

    second = make_queued_ready(api, report=lambda *_: machines.released.set())

    existing = local_api.node("demo")
    local_api.halt()
    assert second.node.id != first.node.id
    assert existing["queuedResource"].endswith("/queuedResources/demo")


def test_the_error_about_a_request_that_cannot_be_deleted_yet_says_when_to_retry(client, scripted):
    waiting = request("PROVISIONING")
    refusal = error(400, "The queued resource is in state PROVISIONING", "FAILED_PRECONDITION")
    scripted.handler = lambda it: refusal if it.method == "DELETE" else Reply(waiting)
    requests = [parse_queued_resource(waiting)]
    (result,) = delete_requests(CloudTpus(client), requests, ChangeOptions(timeout=20))
    assert "PROVISIONING. If Google is creating the TPU, run the playbook again when" in result.msg


def test_a_dead_request_of_another_fleet_is_not_replaced(api, local_api):
    make_queued_ready(api)
    preempt(local_api)
    fleet = parse_fleet([SPOT])
    options = ChangeOptions(timeout=20, replace_dead=True, check_owner=refuse)

    (result,) = create(CloudTpus(api), fleet, {}, options)

    assert "demo (us-central2-b) is not ours" in result.msg
    assert len(api.list_queued_resources()) == 1
