"""Queued resources: creation, replacement and deletion, also if requests to the API fail."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.changes import ChangeOptions
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.errors import BadAnswer, Different
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.node_spec import (
    NodeSpec,
    parse_duration,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.nodes import parse_node
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.queue_state import (
    ensure_not_requested,
    ensure_requested,
    queued_resource_of,
    wait_for_suspension,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.queued_resource import (
    QueuedResourceSpec,
    parse_queued_resource,
)

from harness.scripted_api import PROJECT, ZONE, Drop, Reply, error, node
from tests.collections.local_client import changes
from tests.collections.running_modules import run_module

TPU = NodeSpec("demo", ZONE, "v4-8", "tpu-ubuntu2204-base")
DEMO = QueuedResourceSpec("demo", TPU, tier="spot")
GONE = error(404, "not found")


def request(state="ACTIVE", created="2026-11-21T10:00:00Z", spec=DEMO, **fields):
    """Return a queued resource as the API represents it."""
    return {
        "name": f"projects/{PROJECT}/locations/{ZONE}/queuedResources/{spec.name}",
        "createTime": created,
        **spec.body(PROJECT),
        "state": {"state": state, "stateInitiator": "SERVICE", **fields},
    }


def test_several_tpus_of_a_request_are_slices_of_one_multislice(api, local_api):
    result = ensure_requested(api, replace(DEMO, count=2), ChangeOptions())
    assert result.request.nodes == ("demo-0", "demo-1")
    assert local_api.node("demo-1")["multisliceNode"] is True
    assert not ensure_requested(api, replace(DEMO, count=2), ChangeOptions()).changed


def refuse(found):
    raise Different(f"{found.where} is not ours")


@pytest.mark.parametrize(
    ("state", "options", "message"),
    [
        ("SUSPENDED", {"replace_dead": False}, "is SUSPENDED, and Google will not retry it"),
        ("SUSPENDING", {"replace_dead": False}, "is SUSPENDING, and Google will not retry it"),
        ("SUSPENDING", {"check_owner": refuse}, r"demo \(us-central2-b\) is not ours"),
    ],
)
def test_a_suspended_request_is_not_replaced_without_consent(
    client, scripted, state, options, message
):
    scripted.handler = lambda _: Reply(request(state))
    with pytest.raises(Different, match=message):
        ensure_requested(client, DEMO, ChangeOptions(**options))
    assert set(scripted.methods()) == {"GET"}


def test_a_dead_request_is_replaced_without_force(client, scripted):
    """By force, Google would also delete TPUs of the request that still exist."""
    done = Reply({"done": True})
    dead = Reply(request("SUSPENDED"))
    scripted.script = [dead, dead, done, GONE, done, Reply(request()), Reply(request())]

    assert ensure_requested(client, DEMO, ChangeOptions(replace_dead=True)).changed

    (deletion,) = (sent for sent in scripted.asked if sent.method == "DELETE")
    assert deletion.query == "force=false"


def run_queued_resource(scripted, **options):
    """Run the module tpu_queued_resource for DEMO and return its result."""
    spec = {"name": "demo", "zone": ZONE, "accelerator_type": "v4-8", "tier": "spot"}
    spec |= {"runtime_version": TPU.runtime_version, "api": scripted.api}
    return run_module("tpu_queued_resource", **spec, **options)


@pytest.mark.parametrize("replace_dead", [True, False])
def test_the_module_replaces_a_suspended_request_only_with_the_option(scripted, replace_dead):
    scripted.handler = lambda _: Reply(request("SUSPENDED"))

    result = run_queued_resource(scripted, check=True, replace_dead=replace_dead)

    assert (result.get("changed", False), result.get("failed", False)) == (
        replace_dead,
        not replace_dead,
    )


@pytest.mark.parametrize("force", [True, False])
def test_the_module_deletes_the_tpus_of_a_request_only_by_force(scripted, force):
    scripted.script = [Reply(request())] * 2 + [Reply({"done": True}), GONE]

    assert run_queued_resource(scripted, state="absent", force=force)["changed"]

    (deletion,) = (sent for sent in scripted.asked if sent.method == "DELETE")
    assert deletion.query == f"force={str(force).lower()}"


def test_without_wait_the_module_returns_while_the_request_is_queued(scripted):
    waiting = Reply(request("WAITING_FOR_RESOURCES"))
    scripted.script = [GONE, Reply({"done": True}), waiting, waiting]

    created, again = (run_queued_resource(scripted, wait=False, timeout=1) for _ in range(2))

    assert (created["changed"], again["changed"]) == (True, False)
    assert created["request"]["state"] == again["request"]["state"] == "WAITING_FOR_RESOURCES"


def test_the_module_waits_until_its_timeout(scripted):
    waiting = [Reply(request("WAITING_FOR_RESOURCES"))] * 4
    scripted.script = [*waiting, Reply(request())]

    assert run_queued_resource(scripted, timeout=1)["reason"] == "deadline"


def test_the_module_names_what_holds_the_quota(scripted):
    failed = {"error": {"code": 8, "message": "Quota limit 'TPUV4' has been exceeded"}}
    scripted.script = [GONE, Reply({"done": True}), Reply(request("FAILED", failedData=failed))]

    result = run_queued_resource(scripted)

    assert result["reason"] == "quota"
    assert "exceeded; " in result["msg"]


def test_the_module_requests_a_tpu_of_another_name(scripted):
    scripted.script = [GONE, Reply({"done": True}), Reply(request("WAITING_FOR_RESOURCES"))]

    assert run_queued_resource(scripted, wait=False, node_name="other")["changed"]

    (creation,) = (sent for sent in scripted.asked if sent.method == "POST")
    assert creation.body["tpu"]["nodeSpec"][0]["nodeId"] == "other"


def test_a_request_that_somebody_else_created_meanwhile_is_not_used(client, scripted):
    taken = error(409, "already exists")
    theirs = request(spec=replace(DEMO, tier=""))
    scripted.script = [GONE, taken, Reply(request()), GONE, taken, Reply(theirs)]
    with pytest.raises(Different, match=r"demo \(us-central2-b\) is not ours"):
        ensure_requested(client, DEMO, ChangeOptions(check_owner=refuse))
    with pytest.raises(errors.AlreadyExists):
        ensure_requested(client, DEMO, ChangeOptions())


def test_a_request_that_is_being_deleted_is_replaced_whoever_created_it(client, scripted):
    scripted.handler = lambda _: Reply(request("DELETING"))

    assert ensure_requested(client, DEMO, ChangeOptions(check=True, check_owner=refuse)).changed


def test_a_request_that_is_recreated_while_it_waits_is_an_error(client, scripted):
    waiting = Reply(request("WAITING_FOR_RESOURCES"))
    scripted.script = [waiting, Reply(request(created="2026-11-21T11:00:00Z"))]

    with pytest.raises(errors.OperationFailed, match="it was deleted meanwhile"):
        ensure_requested(client, DEMO, ChangeOptions())


def test_check_mode_does_not_wait(client, scripted):
    scripted.handler = lambda _: Reply(request("WAITING_FOR_RESOURCES"))

    assert not ensure_requested(client, DEMO, ChangeOptions(check=True)).changed


QUEUED = {"queuedResource": request()["name"]}


@pytest.mark.parametrize(
    ("tpu", "requested", "belongs"),
    [
        (node(**QUEUED), request(), True),
        (node(**QUEUED), request(spec=replace(DEMO, count=2)), False),
        (node(**QUEUED, multisliceNode=True), request(), False),
        (node(), request(), False),
    ],
    ids=["its only TPU", "other TPUs", "a slice", "not queued"],
)
def test_a_request_is_deleted_with_a_tpu_only_if_it_created_no_other_tpu(
    client, scripted, tpu, requested, belongs
):
    scripted.handler = lambda _: Reply(requested)

    assert bool(queued_resource_of(client, parse_node(tpu))) == belongs


@pytest.mark.parametrize(
    "answers",
    [
        [GONE],
        [Reply(request("SUSPENDING"))],
        [Reply(request()), GONE],
        [Reply(request()), Reply(node(**QUEUED, id="2"))],
    ],
    ids=["no request", "being suspended", "no TPU", "another TPU"],
)
def test_the_wait_for_a_suspension_ends_when_nothing_is_left_to_suspend(client, scripted, answers):
    scripted.script = [*answers]

    wait_for_suspension(client, parse_node(node(**QUEUED)), ChangeOptions())

    assert len(scripted.asked) == len(answers)


def test_a_request_with_living_tpus_is_deleted_only_by_force(api, local_api):
    ensure_requested(api, DEMO, ChangeOptions())
    for check in (True, False):
        with pytest.raises(errors.InvalidRequest) as refused:
            ensure_not_requested(api, ZONE, "demo", ChangeOptions(check=check))
        # The error must not suggest the option ``force``, which delete.yml does not have.
        assert "set force" not in str(refused.value)
    assert ensure_not_requested(api, ZONE, "demo", ChangeOptions(check=True), force=True).changed
    assert local_api.node("demo")["state"] == "READY"
    assert ensure_not_requested(api, ZONE, "demo", ChangeOptions(), force=True).changed
    assert api.list_queued_resources() == []
    assert api.list_nodes().entries == []
    assert not ensure_not_requested(api, ZONE, "demo", ChangeOptions()).changed


def test_a_request_whose_tpus_were_just_deleted_is_deleted_once_google_allows_it(client, scripted):
    states = iter(["ACTIVE", "ACTIVE", "SUSPENDING", "SUSPENDED"])
    state = ""

    def answer(asked):
        nonlocal state
        if asked.method == "DELETE":
            allowed, state = state == "SUSPENDED", "" if state != "SUSPENDED" else "GONE"
            message = "DeleteQueuedResource is not supported when state is ACTIVE"
            return Reply({"done": True}) if allowed else error(400, message, "FAILED_PRECONDITION")
        if "/nodes/" in asked.path or state == "GONE":
            return GONE
        state = next(states)
        return Reply(request(state))

    scripted.handler = answer
    assert ensure_not_requested(client, ZONE, "demo", ChangeOptions()).changed


@pytest.mark.parametrize(("count", "suggests_playbook"), [(1, True), (2, False)])
def test_a_living_request_that_differs_is_never_changed(api, local_api, count, suggests_playbook):
    existing = replace(DEMO, count=count)
    ensure_requested(api, existing, ChangeOptions())
    before = changes(local_api, "queuedResources")
    other = replace(existing, tier="", tpu=replace(TPU, accelerator_type="v4-16"))
    differences = "accelerator_type is v4-8, expected v4-16; tier is spot"
    with pytest.raises(Different, match=differences) as error:
        ensure_requested(api, other, ChangeOptions())
    # delete.yml finds a queued resource by its TPU, and only if it has no other TPU.
    assert ("playbooks/delete.yml" in str(error.value)) == suggests_playbook
    assert changes(local_api, "queuedResources") == before


def test_a_retry_after_a_lost_answer_has_the_same_request_id(client, scripted):
    scripted.script = [GONE, Drop(), Reply({"done": True}), Reply(request())]
    ensure_requested(client, DEMO, ChangeOptions())
    first, second = (sent.query for sent in scripted.asked if sent.method == "POST")
    assert first == second
    assert "requestId=" in first


def test_the_timeout_error_says_that_the_request_stays_queued(client, scripted):
    scripted.handler = lambda _: Reply(request("WAITING_FOR_RESOURCES"))
    with pytest.raises(
        errors.DeadlineExceeded,
        match=r"still WAITING_FOR_RESOURCES.*the cloud continues.*-e create_seconds=SECONDS",
    ):
        ensure_requested(client, DEMO, ChangeOptions(timeout=60))
    assert set(scripted.methods()) == {"GET"}


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("There is no more capacity in the zone", errors.CapacityError),
        ("Quota limit 'TPUV4' has been exceeded", errors.QuotaError),
        ("it was not served in time", errors.OperationFailed),
    ],
)
def test_ensure_requested_raises_the_error_of_a_failed_request(client, scripted, message, kind):
    failed = request("FAILED", failedData={"error": {"code": 8, "message": message}})
    scripted.script = [GONE, Reply({"done": True}), Reply(failed)]
    with pytest.raises(kind, match=message[:20]):
        ensure_requested(client, DEMO, ChangeOptions())


def test_all_options_of_a_request_reach_the_api():
    desired = replace(DEMO, tier="guaranteed", min_duration=3600, count=2, reservation="mine")
    body = replace(desired, valid_until="2026-12-01T00:00:00Z").body("p")
    assert body["guaranteed"] == {"minDuration": "3600s"}
    assert body["queueingPolicy"] == {"validUntilTime": "2026-12-01T00:00:00Z"}
    assert body["reservationName"] == f"projects/p/locations/{ZONE}/reservations/mine"
    (spec,) = body["tpu"]["nodeSpec"]
    assert spec["multisliceParams"] == {"nodeCount": 2, "nodeIdPrefix": "demo"}
    assert "nodeId" not in spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Demo"}, "invalid TPU name"),
        ({"tpu": replace(TPU, name="My.TPU"), "count": 2}, "invalid TPU name"),
        ({"tpu": replace(TPU, name="a" * 62), "count": 2}, "invalid TPU name"),
        ({"count": 0}, "count is 0"),
        ({"valid_for": 1, "valid_until": "2026-12-01T00:00:00Z"}, "both valid_for and valid_until"),
        ({"min_duration": 60}, "min_duration needs the tier guaranteed"),
    ],
)
def test_an_impossible_request_is_refused_before_sending(client, scripted, change, message):
    with pytest.raises(errors.NotConfigured, match=message):
        ensure_requested(client, replace(DEMO, **change), ChangeOptions())
    assert scripted.asked == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("6h", 21600), ("2d", 172800)]
)
def test_a_duration_is_a_number_and_a_unit(text, seconds):
    assert parse_duration(text, "valid_for") == seconds


@pytest.mark.parametrize("text", ["", "0h", "six hours", "6 h", True, None])
def test_an_invalid_duration_is_refused(text):
    with pytest.raises(errors.NotConfigured, match="valid_for: expected"):
        parse_duration(text, "valid_for")


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        ({"nodeId": "My.TPU"}, ("My.TPU",)),
        ({"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "s_1"}}, ("s_1-0", "s_1-1")),
        ({"multisliceParams": {"nodeCount": 2}}, ("My.QR-0", "My.QR-1")),
    ],
)
def test_the_request_of_another_user_may_have_any_name_that_google_accepts(spec, nodes):
    name = f"projects/{PROJECT}/locations/{ZONE}/queuedResources/My.QR"
    assert parse_queued_resource({"name": name, "tpu": {"nodeSpec": [spec]}}).nodes == nodes


@pytest.mark.parametrize("name", ["a/b", "{{ x }}", "a" * 129])
def test_an_invalid_name_of_a_requested_tpu_is_refused(name):
    with pytest.raises(BadAnswer, match="invalid TPU name"):
        parse_queued_resource(request() | {"tpu": {"nodeSpec": [{"nodeId": name}]}})


@pytest.mark.parametrize(
    "change",
    [
        {"name": "x"},
        *(
            {"name": request()["name"].replace("demo", name)}
            for name in ("..", "a b", "{{ x }}", "x" * 129)
        ),
        {"state": "ACTIVE"},
        {"tpu": []},
        {"tpu": {"nodeSpec": ["x"]}},
    ],
)
def test_an_invalid_queued_resource_is_refused(change):
    with pytest.raises(BadAnswer):
        parse_queued_resource(request() | change)
