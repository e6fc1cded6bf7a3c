"""Deletion by identity: a new resource with the same name is never deleted."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import disks, errors, node_state
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.changes import ChangeOptions
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.deletion import TRIES
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.nodes import parse_node
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.queue_state import (
    ensure_not_requested,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.queued_resource import (
    parse_queued_resource,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.cloud_tpus import CloudTpus
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.reconcile import (
    create,
    delete,
    delete_requests,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.spec import parse_fleet

from harness.scripted_api import PROJECT, ZONE, Drop, Reply, error, node
from tests.collections.test_fleet import SPOT
from tests.collections.test_queued_resources import request
from tests.collections.test_tpu_lifecycle import DEMO

LATER = "2026-11-21T11:00:00Z"
BUSY = error(503, "try again")
TOO_OFTEN = error(429, "rate", details=[{"reason": "RATE_LIMIT_EXCEEDED"}])
NOT_DONE = [BUSY, TOO_OFTEN, error(500, "oops"), Drop()]
DISK = {
    "name": "corpus",
    "id": "1",
    "sizeGb": "50",
    "description": disks.DESCRIPTION_PREFIX,
    "status": "READY",
}


def deletions(scripted):
    return scripted.methods().count("DELETE")


def delete_tpu(client):
    node_state.ensure_absent(client, ZONE, "demo", ChangeOptions())


def delete_request(client):
    ensure_not_requested(client, ZONE, "demo", ChangeOptions())


STORED_DISK = disks.StoredDisk(ZONE, "corpus", "1", 50, "READY", disks.DESCRIPTION_PREFIX)


def delete_disk(client):
    disks.ensure_disk_absent(client.compute, STORED_DISK, ChangeOptions())


@pytest.mark.parametrize("deletion", NOT_DONE)
@pytest.mark.parametrize(
    ("delete_it", "current", "later"),
    [
        (delete_tpu, node(id="4711"), node(id="4712")),
        (delete_request, request("FAILED"), request(created=LATER)),
        (delete_disk, DISK, DISK | {"id": "2"}),
    ],
)
def test_a_retry_does_not_delete_a_new_resource_of_the_same_name(
    client, scripted, deletion, delete_it, current, later
):
    def answer(asked):
        nonlocal current
        if asked.method == "DELETE":
            current = later
            return deletion
        return Reply(current)

    scripted.handler = answer
    delete_it(client)

    assert deletions(scripted) == 1


@pytest.mark.parametrize(
    ("delete_it", "current"),
    [
        (delete_tpu, node(state="DELETING")),
        (delete_request, request("DELETING")),
        (delete_disk, DISK | {"status": "DELETING"}),
    ],
)
def test_a_resource_that_is_being_deleted_already_is_only_waited_for(
    client, scripted, delete_it, current
):
    def answer(_):
        return Reply(current) if len(scripted.asked) < 5 else error(404, "not found")

    scripted.handler = answer
    delete_it(client)

    assert set(scripted.methods()) == {"GET"}


def replace_tpu(client):
    node_state.ensure_present(client, DEMO, ChangeOptions(replace_dead=True))


@pytest.mark.parametrize(
    ("delete_it", "current", "field"),
    [
        (delete_tpu, node(), "id"),
        (replace_tpu, node(state="PREEMPTED"), "id"),
        (delete_request, request("FAILED"), "createTime"),
    ],
)
def test_a_resource_without_an_id_is_never_deleted(client, scripted, delete_it, current, field):
    without_id = {key: value for key, value in current.items() if key != field}
    scripted.handler = lambda _: Reply(without_id)

    with pytest.raises(errors.BadAnswer, match="returned no id"):
        delete_it(client)

    assert set(scripted.methods()) == {"GET"}


@pytest.mark.parametrize("body", [b"<html>no such page</html>", b"", b"{}"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_404_of_a_proxy_does_not_count_as_a_deleted_tpu(client, scripted, method, body):
    scripted.handler = lambda asked: Reply(body, 404) if asked.method == method else Reply(node())

    with pytest.raises(
        errors.BadAnswer, match=r"HTTP 404, but the API did not send this.*HTTPS_PROXY"
    ):
        node_state.ensure_absent(client, ZONE, "demo", ChangeOptions())


def test_a_request_recreated_during_the_deletion_is_not_deleted(client, scripted):
    queue = f"projects/{PROJECT}/locations/{ZONE}/queuedResources/demo"
    current = {"nodes": node(queuedResource=queue), "queuedResources": request()}

    def answer(asked):
        kind = asked.path.split("/")[-2]
        if asked.method == "DELETE":
            current.pop(kind)
            current["queuedResources"] = request(created=LATER)
            return Reply({"done": True})
        return Reply(current[kind]) if kind in current else error(404, "not found")

    scripted.handler = answer
    nodes = [parse_node(current["nodes"])]
    (result,) = delete(CloudTpus(client), nodes, ChangeOptions(timeout=600))

    assert result.reason == "different"
    assert current["queuedResources"]["createTime"] == LATER


@pytest.mark.parametrize(
    ("delete_them", "listed", "current"),
    [
        (delete, parse_node(node(id="4711")), node(id="4712")),
        (
            delete_requests,
            parse_queued_resource(request("FAILED")),
            request("FAILED", created=LATER),
        ),
    ],
)
def test_a_resource_recreated_after_it_was_listed_is_not_deleted(
    client, scripted, delete_them, listed, current
):
    scripted.handler = lambda _: Reply(current)

    (result,) = delete_them(CloudTpus(client), [listed], ChangeOptions())

    assert result.reason == "different"
    assert set(scripted.methods()) == {"GET"}


@pytest.mark.parametrize("state", ["PREEMPTED", "DELETING"])
def test_a_tpu_recreated_after_it_was_listed_is_not_deleted_for_a_queued_tpu(
    client, scripted, state
):
    scripted.handler = lambda _: Reply(node(id="4712"))
    listed = {"demo": parse_node(node(id="4711", state=state))}

    (result,) = create(
        CloudTpus(client), parse_fleet([SPOT]), listed, ChangeOptions(replace_dead=True)
    )

    assert result.reason == "different"
    assert set(scripted.methods()) == {"GET"}


def test_a_deletion_that_is_always_refused_ends_with_the_last_error(client, scripted):
    scripted.handler = lambda asked: BUSY if asked.method == "DELETE" else Reply(node())

    with pytest.raises(errors.Unavailable, match="503"):
        node_state.ensure_absent(client, ZONE, "demo", ChangeOptions(timeout=3600))

    assert deletions(scripted) == TRIES


@pytest.mark.parametrize(
    ("current", "confirmed"),
    [(DISK, ()), (DISK | {"id": "2"}, None)],
    ids=["not confirmed", "recreated since it was listed"],
)
def test_a_disk_that_was_not_confirmed_or_listed_is_not_deleted(
    client, scripted, current, confirmed
):
    scripted.handler = lambda _: Reply(current)

    with pytest.raises(errors.Different, match="created after the list that you confirmed"):
        disks.ensure_disk_absent(client.compute, STORED_DISK, ChangeOptions(confirmed=confirmed))

    assert set(scripted.methods()) == {"GET"}
