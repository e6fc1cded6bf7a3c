"""Bringing one TPU to its desired state, with the local cloud's API and with faults."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.changes import ChangeOptions
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.names import Disk
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.node_spec import NodeSpec
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.node_state import (
    ensure_power,
    ensure_present,
)

from harness.scripted_api import ZONE, Drop, Reply, error, node
from tests.collections.running_modules import run_module
from tests.collections.test_queued_resources import refuse

DEMO = NodeSpec("demo", ZONE, "v4-16", "tpu-ubuntu2204-base")
GONE = error(404, "not found")


def test_recreate_replaces_a_different_tpu(api):
    first = ensure_present(api, DEMO, ChangeOptions())
    other = replace(DEMO, accelerator_type="v4-8")
    second = ensure_present(api, other, ChangeOptions(recreate=True))
    assert second.node.id != first.node.id
    assert second.node.accelerator_type == "v4-8"


def test_a_preempted_tpu_is_replaced_only_if_requested(api, local_api):
    first = ensure_present(api, replace(DEMO, spot=True), ChangeOptions())
    local_api.preempt("demo")
    with pytest.raises(errors.Different, match="is PREEMPTED and can't start again"):
        ensure_present(api, replace(DEMO, spot=True), ChangeOptions())
    second = ensure_present(api, replace(DEMO, spot=True), ChangeOptions(replace_dead=True))
    assert (second.node.state, second.node.id != first.node.id) == ("READY", True)


@pytest.mark.parametrize(
    ("existing", "option"),
    [(node(acceleratorType="v4-8"), "recreate"), (node(state="PREEMPTED"), "replace_dead")],
)
def test_the_module_replaces_a_tpu_only_with_the_option(scripted, existing, option):
    scripted.handler = lambda _: Reply(existing)
    spec = {"name": "demo", "zone": ZONE, "accelerator_type": "v4-16"}
    spec |= {"runtime_version": DEMO.runtime_version, "api": scripted.api}

    assert run_module("tpu_node", check=True, **spec)["reason"] == "different"
    assert run_module("tpu_node", check=True, **spec, **{option: True})["changed"]


def test_a_creation_whose_answer_is_lost_creates_only_one_tpu(client, scripted):
    scripted.script = [
        GONE,
        Drop(),
        error(409, "already exists", "ALREADY_EXISTS"),
        Reply(node()),
        Reply(node(state="CREATING")),
        Reply(node()),
    ]
    result = ensure_present(client, DEMO, ChangeOptions())
    assert (result.changed, result.node.state) == (True, "READY")


def test_a_tpu_that_another_controller_created_meanwhile_is_checked_for_differences(
    client, scripted
):
    scripted.handler = lambda asked: (
        error(409, "already exists")
        if asked.method == "POST"
        else GONE
        if len(scripted.asked) == 1
        else Reply(node(acceleratorType="v4-8"))
    )
    with pytest.raises(errors.Different, match="accelerator_type is v4-8"):
        ensure_present(client, DEMO, ChangeOptions())


def test_a_tpu_that_another_fleet_created_meanwhile_is_not_used(client, scripted):
    scripted.script = [GONE, error(409, "already exists"), Reply(node())]
    with pytest.raises(errors.Different, match=r"demo \(us-central2-b\) is not ours"):
        ensure_present(client, DEMO, ChangeOptions(check_owner=refuse))


def test_a_tpu_that_is_still_being_created_is_waited_for(client, scripted):
    scripted.script = [Reply(node(state="CREATING"))] * 3 + [Reply(node())]
    result = ensure_present(client, DEMO, ChangeOptions())
    assert (result.changed, set(scripted.methods())) == (False, {"GET"})


@pytest.mark.parametrize("state", ["STOPPED", "STOPPING"])
def test_a_stopped_tpu_is_an_error_with_the_command_that_starts_it(client, scripted, state):
    scripted.script = [Reply(node(state=state))]
    with pytest.raises(errors.Different, match=rf"is {state}\. Start it: .*/start_tpu\.yml"):
        ensure_present(client, DEMO, ChangeOptions())


def test_ensure_present_raises_the_error_of_a_creation_that_failed_meanwhile(client, scripted):
    failed = {
        "metadata": {"target": node()["name"], "verb": "create", "createTime": "2026-01-01"},
        "done": True,
        "error": {"code": 8, "message": "There is no more capacity in the zone"},
    }
    scripted.script = [Reply(node(state="CREATING")), GONE, Reply({"operations": [failed]})]
    with pytest.raises(errors.CapacityError, match="no more capacity"):
        ensure_present(client, DEMO, ChangeOptions())


@pytest.mark.parametrize(
    ("state", "kind"),
    [("PREEMPTED", errors.CapacityError), ("READY", errors.OperationFailed)],
)
def test_a_tpu_that_is_preempted_during_its_creation_lacks_capacity(client, scripted, state, kind):
    message = "Cloud TPU received a bad request. update is not supported while in state PREEMPTED"
    failed = {"name": "o", "done": True, "error": {"code": 3, "message": message}}
    scripted.handler = lambda asked: (
        Reply(failed)
        if asked.method == "POST"
        else GONE
        if len(scripted.asked) == 1
        else Reply(node(state=state))
    )
    with pytest.raises(kind, match="PREEMPTED"):
        ensure_present(client, DEMO, ChangeOptions())


def patch_of(client, scripted, existing, spec):
    """Ensure that the TPU ``existing`` is as in ``spec``; return the PATCH request."""
    scripted.script = [Reply(existing), Reply(node()), Reply({"done": True}), Reply(node())]
    assert ensure_present(client, spec, ChangeOptions()).changed
    return next(request for request in scripted.asked if request.method == "PATCH")


def test_mutable_options_are_patched_with_an_update_mask(client, scripted):
    spec = replace(DEMO, labels={"a": "2"}, external_ip=True)
    patch = patch_of(client, scripted, node(labels={"a": "1"}), spec)
    assert patch.query == "updateMask=labels%2Cnetwork_config.enable_external_ips"
    assert patch.body == {"labels": {"a": "2"}, "networkConfig": {"enableExternalIps": True}}


def test_the_key_of_a_second_controller_is_added_to_the_other_keys(client, scripted):
    spec = replace(DEMO, metadata={"ssh-keys": "b:key2"})
    patch = patch_of(client, scripted, node(metadata={"ssh-keys": "a:key1"}), spec)
    assert patch.body == {"metadata": {"ssh-keys": "a:key1\nb:key2"}}


def test_a_change_that_another_one_blocks_is_repeated_and_keeps_the_other_one(client, scripted):
    spec = replace(DEMO, metadata={"ssh-keys": "b:key2"})
    others = node(metadata={"ssh-keys": "a:key1"})
    busy = error(409, "another operation is in progress", "ABORTED")
    first = [Reply(node()), Reply(node()), busy]
    scripted.script = [*first, Reply(others), Reply({"done": True}), Reply(node())]

    assert ensure_present(client, spec, ChangeOptions()).changed

    patches = [request.body for request in scripted.asked if request.method == "PATCH"]
    assert patches[-1] == {"metadata": {"ssh-keys": "a:key1\nb:key2"}}


def test_a_change_that_was_made_but_whose_answer_was_lost_is_not_repeated(client, scripted):
    spec = replace(DEMO, labels={"a": "2"})
    busy, changed = error(409, "another operation is in progress"), Reply(node(labels={"a": "2"}))
    scripted.script = [Reply(node()), Reply(node()), Drop(), busy, changed, changed]

    assert ensure_present(client, spec, ChangeOptions()).changed

    assert scripted.methods() == ["GET", "GET", "PATCH", "PATCH", "GET", "GET"]


def test_a_new_tpu_that_takes_the_name_during_the_wait_is_not_changed(client, scripted):
    scripted.script = [Reply(node(state="RESTARTING"))] * 2 + [Reply(node(id="4712"))] * 9
    with pytest.raises(errors.Different, match=r"can't change TPU demo .* has taken its name"):
        ensure_present(client, replace(DEMO, labels={"a": "b"}), ChangeOptions())
    assert set(scripted.methods()) == {"GET"}


def test_metadata_is_never_shown(client, scripted):
    scripted.script = [Reply(node(metadata={"startup-script": "export TOKEN=s3cret"}))] * 2
    result = ensure_present(client, DEMO, ChangeOptions())
    assert "s3cret" not in str((result.before, result.after))


@pytest.mark.parametrize("lost", [Drop(), *(error(code, "oops") for code in (500, 502, 504))])
def test_a_stop_whose_answer_is_lost_is_waited_for_and_not_repeated(client, scripted, lost):
    stopping = [Reply(node(state=state)) for state in ("STOPPING", "STOPPED")]
    scripted.script = [Reply(node()), lost, *stopping]
    assert ensure_power(client, ZONE, "demo", started=False, timeout=600).changed
    assert scripted.methods() == ["GET", "POST", "GET", "GET"]


@pytest.mark.parametrize(("started", "state"), [(False, "STOPPING"), (True, "STARTING")])
def test_waiting_for_a_tpu_that_is_already_stopping_or_starting_is_not_a_change(
    client, scripted, started, state
):
    scripted.script = [Reply(node(state=state))] * 2
    scripted.script += [Reply(node(state="READY" if started else "STOPPED"))]
    for check in (True, False):
        assert not ensure_power(
            client, ZONE, "demo", started=started, timeout=600, check=check
        ).changed
    assert set(scripted.methods()) == {"GET"}


def test_another_tpu_of_the_same_name_is_not_stopped(client, scripted):
    scripted.script = [Reply(node(state="STARTING")), Reply(node(id="4712"))]
    with pytest.raises(errors.Different, match="was recreated meanwhile"):
        ensure_power(client, ZONE, "demo", started=False, timeout=600, node_id=node()["id"])
    assert set(scripted.methods()) == {"GET"}


def test_the_module_does_not_stop_a_tpu_with_another_id(scripted):
    scripted.handler = lambda _: Reply(node(id="4712"))
    spec = {"name": "demo", "zone": ZONE, "state": "stopped", "timeout": 1, "api": scripted.api}

    assert run_module("tpu_node", check=True, **spec, node_id="4712")["changed"]
    assert "was recreated meanwhile" in run_module("tpu_node", **spec, node_id="4711")["msg"]
    assert set(scripted.methods()) == {"GET"}


@pytest.mark.parametrize("check", [False, True], ids=["", "check mode"])
@pytest.mark.parametrize(
    ("reply", "kind", "fix"),
    [
        (GONE, errors.NotFound, "Create it with state: present"),
        (Reply(node(state="PREEMPTED")), errors.Different, "must be recreated"),
    ],
    ids=["missing", "preempted"],
)
def test_the_error_about_starting_a_dead_tpu_has_the_fix(client, scripted, reply, kind, fix, check):
    scripted.script = [reply]
    with pytest.raises(kind, match=fix):
        ensure_power(client, ZONE, "demo", started=True, timeout=600, check=check)


RICH = replace(
    DEMO,
    accelerator_type="",
    config_type="V4",
    topology="2x2x2",
    reserved=True,
    service_account="me@example.iam",
    scopes=("https://www.googleapis.com/auth/cloud-platform",),
    secure_boot=True,
    data_disks=(Disk("corpus"),),
)


def test_all_options_of_a_tpu_reach_the_api():
    body = RICH.body("p")
    assert body == {
        "acceleratorConfig": {"type": "V4", "topology": "2x2x2"},
        "runtimeVersion": "tpu-ubuntu2204-base",
        "schedulingConfig": {"reserved": True},
        "serviceAccount": {
            "email": "me@example.iam",
            "scope": ["https://www.googleapis.com/auth/cloud-platform"],
        },
        "shieldedInstanceConfig": {"enableSecureBoot": True},
        "dataDisks": [{"sourceDisk": f"projects/p/zones/{ZONE}/disks/corpus", "mode": "READ_ONLY"}],
    }


def test_a_tpu_created_with_all_options_needs_no_change(client, scripted):
    scripted.handler = lambda _: Reply(node() | RICH.body("p"))
    assert not ensure_present(client, RICH, ChangeOptions()).changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"topology": "2x2x4", "spot": True, "reserved": False},
            "accelerator_type is v4-16, expected v4-32; spot is false, expected true; reserved is "
            "true, expected false.*recreate: true",
        ),
        ({"service_account": "you@example.iam"}, "service_account is me@example.iam"),
        ({"scopes": ("email",)}, "scopes is https://"),
        ({"secure_boot": False}, "secure_boot is true, expected false"),
        ({"data_disks": ()}, "data_disks is corpus \\(read-only\\), expected nothing"),
    ],
)
def test_immutable_options_cannot_be_changed(client, scripted, change, message):
    scripted.handler = lambda _: Reply(node() | RICH.body("p"))
    with pytest.raises(errors.Different, match=message):
        ensure_present(client, replace(RICH, **change), ChangeOptions())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a_b"}, "invalid TPU name"),
        ({"name": "a" * 64}, "invalid TPU name"),
        ({"data_disks": (Disk("corpus", True),)}, "only for reading. Set mode: read-only"),
        ({"accelerator_type": "v4-16"}, "both accelerator_type and accelerator_config are set"),
        ({"config_type": ""}, "needs type and topology"),
        ({"spot": True}, "set only one of spot"),
    ],
)
def test_an_impossible_request_is_refused_before_sending(client, scripted, change, message):
    with pytest.raises(errors.NotConfigured, match=message):
        ensure_present(client, replace(RICH, **change), ChangeOptions())
    assert scripted.asked == []
