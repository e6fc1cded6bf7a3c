"""The client of the Cloud TPU API against a real HTTP server, with and without faults."""

import json
import time
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.http import Polling, RetryPolicy
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.session import ApiSettings
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import TpuApi

from harness.scripted_api import PROJECT, TOKEN, ZONE, Drop, Reply, Request, error, node

BUSY = error(503, "busy", "UNAVAILABLE")
RATE_LIMITED = error(
    429,
    "Quota exceeded for quota metric 'Read requests', quota limit 'per minute'",
    details=[{"reason": "RATE_LIMIT_EXCEEDED"}],
)


def test_all_pages_of_a_list_are_followed(client, scripted):
    scripted.script = [
        Reply({"nodes": [node("a")], "nextPageToken": "two"}),
        Reply({"nodes": [node("b")], "nextPageToken": "three"}),
        Reply({}),
    ]
    names = [entry["name"].rsplit("/", 1)[1] for entry in client.list_nodes().entries]
    assert names == ["a", "b"]
    assert [("pageToken" in request.query) for request in scripted.asked] == [False, True, True]


@pytest.mark.parametrize(
    "faults", [[BUSY, BUSY], [Drop()], [RATE_LIMITED]], ids=["busy", "dropped", "rate limit"]
)
def test_a_page_is_requested_again_after_a_transient_fault(client, scripted, faults):
    first = Reply({"nodes": [node("a")], "nextPageToken": "two"})
    scripted.script = [first, *faults, Reply({"nodes": [node("b")]})]
    assert len(client.list_nodes().entries) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "malformed response"),
        (b"<html>router login</html>", "malformed response"),
        ({"nextPageToken": "again"}, "same page token twice"),
        ({"nodes": "none"}, None),
        ({"nodes": [1]}, None),
        ({"unreachable": {}}, None),
        ([], None),
    ],
)
def test_an_invalid_answer_is_an_error_and_never_an_empty_list(client, scripted, body, message):
    scripted.handler = lambda _: Reply(body)
    with pytest.raises(errors.BadAnswer, match=message):
        client.list_nodes()


def test_a_zone_that_is_unreachable_on_the_first_of_two_pages_is_reported(client, scripted):
    zone = "projects/local-fleet/locations/us-east1-d"
    scripted.script = [Reply({"unreachable": [zone], "nextPageToken": "two"}), Reply({})]
    with pytest.raises(errors.PartialAnswer, match="no answer from us-east1-d") as error:
        client.list_nodes()
    # Without the variable, doctor.yml ends with this error of the inventory, too.
    assert "TPUFLEET_ON_ERROR=report ansible-playbook playbooks/doctor.yml" in str(error.value)


def _only_one_zone(request: Request) -> Reply:
    return Reply({"nodes": [node()]}) if f"/{ZONE}/" in request.path else BUSY


def test_the_list_fails_if_one_of_two_zones_fails(client, scripted):
    scripted.handler = _only_one_zone
    with pytest.raises(errors.Unavailable, match="us-east1-d"):
        client.list_nodes([ZONE, "us-east1-d"])


def test_a_zone_that_fails_is_unreachable_if_a_partial_list_is_allowed(client, scripted):
    scripted.handler = _only_one_zone
    listing = client.list_nodes([ZONE, "us-east1-d"], allow_partial=True)
    assert (len(listing.entries), listing.unreachable) == (1, ("us-east1-d",))


def test_a_missing_permission_is_never_a_partial_list(client, scripted):
    scripted.handler = lambda _: error(403, "Permission denied on zone")
    with pytest.raises(errors.Forbidden, match="Permission denied"):
        client.list_nodes([ZONE, "us-east1-d"], allow_partial=True)


def test_waits_between_tries_grow_and_honour_retry_after(client, scripted, clock):
    slow = Reply({"error": {"code": 429, "message": "slow down"}}, 429, (("Retry-After", "7"),))
    scripted.script = [slow, Reply({})]
    client.list_nodes()
    assert clock.slept[0] >= 7


def test_retries_end_with_the_last_error_of_the_api(client, scripted):
    scripted.handler = lambda _: BUSY
    with pytest.raises(errors.Unavailable, match=r"503 \(busy\)"):
        client.list_nodes()
    assert len(scripted.asked) == RetryPolicy().tries


def test_a_server_that_accepts_requests_but_never_responds_is_tried_three_times(scripted, clock):
    short_timeout = RetryPolicy(request_timeout=0.3)
    polling = Polling(clock.sleep, clock)
    client = TpuApi(ApiSettings.of(scripted.api), retry=short_timeout, polling=polling)
    scripted.handler = lambda _: time.sleep(1) or Reply({})

    with pytest.raises(errors.NoAnswer, match=f"no answer from {scripted.endpoint}"):
        client.list_nodes()
    waits_between_tries = len(clock.slept)
    assert waits_between_tries == 2


def test_a_server_that_goes_away_after_five_failed_tries_gets_four_more(scripted, clock):
    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if len(clock.slept) == 5:
            scripted.stop()

    scripted.handler = lambda _: Drop()
    client = TpuApi(ApiSettings.of(scripted.api), polling=Polling(sleep, clock))

    with pytest.raises(errors.NoAnswer, match=f"no answer from {scripted.endpoint}"):
        client.list_nodes()
    waits_between_tries = len(clock.slept)
    assert waits_between_tries == 5 + 3


def test_the_error_of_a_token_endpoint_that_refuses_the_key_is_reported(client, scripted):
    scripted.token_answer = Reply(
        {"error": "invalid_grant", "error_description": "no such key"}, 400
    )
    with pytest.raises(errors.Unauthorized, match="invalid_grant"):
        client.list_nodes()


def test_a_redirect_is_not_followed(client, scripted):
    # A client that followed it would send the access token to the server in the Location header.
    scripted.handler = lambda _: Reply({}, 302, (("Location", f"{scripted.endpoint}/other"),))
    with pytest.raises(errors.InvalidRequest, match="HTTP 302"):
        client.get_node(ZONE, "demo")
    assert len(scripted.asked) == 1


def test_no_error_shows_the_token(client, scripted):
    scripted.handler = lambda request: error(
        400, f"you sent {request.authorization}\nand access_token={TOKEN}"
    )
    with pytest.raises(errors.InvalidRequest) as caught:
        client.get_node(ZONE, "demo")
    assert TOKEN not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        "Quota limit 'TPUV4' has been exceeded. Limit: 32 in zone x.",
        "Quota 'TPUV4' exhausted. Limit 32 in region x\nQuota 'TPUV4Pod' exhausted. Limit 32 in y",
    ],
)
def test_a_request_that_exceeds_a_quota_is_not_retried(client, scripted, message):
    scripted.script = [error(429, message)]
    with pytest.raises(errors.QuotaError, match=r"Limit:? 32"):
        client.create_node(ZONE, "demo", {})


def test_wait_polls_an_operation_until_it_is_done(client, scripted, clock):
    running = {"name": "projects/p/locations/z/operations/1"}
    scripted.script = [Reply(running), BUSY, Reply({**running, "done": True, "response": {}})]
    client.wait(running, "create TPU demo", clock() + 600)
    assert len(scripted.asked) == 3


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (8, "There is no more capacity in the zone", errors.CapacityError),
        (8, "Quota limit 'TPUV4' has been exceeded", errors.QuotaError),
        (9, "Insufficient reserved capacity. Contact customer support", errors.CapacityError),
        (13, "Internal error", errors.OperationFailed),
    ],
)
def test_wait_raises_the_error_of_a_failed_operation(client, clock, code, message, kind):
    failed = {"name": "o", "done": True, "error": {"code": code, "message": message}}
    with pytest.raises(kind, match=message):
        client.wait(failed, "create TPU demo", clock() + 600)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("patch_node", ({"tags": ["a"]}, ["tags"])),
        ("set_data_disks", ([],)),
        ("power_node", ("stop",)),
    ],
)
def test_a_change_raises_the_error_of_its_operation(client, scripted, clock, method, arguments):
    failed = {"name": "o", "done": True, "error": {"code": 3, "message": "it is busy"}}
    scripted.script = [Reply({"name": "o"}), Reply(failed)]
    with pytest.raises(errors.OperationFailed, match="it is busy"):
        getattr(client, method)(ZONE, "demo", *arguments, clock() + 600)


def test_the_pause_between_polls_has_an_upper_limit(clock):
    Polling(clock.sleep, clock).pause("create TPU demo", 5000, clock() + 60)
    assert clock.slept == [10]


@pytest.mark.parametrize("project", ["", "YOUR-PROJECT", "<project>", "a b", "../etc"])
def test_an_invalid_project_is_refused_with_the_fix(project):
    with pytest.raises(errors.NotConfigured, match=r"inventory/gcp/tpu\.yml.*-i inventory/local"):
        ApiSettings.of({"project": project})


@pytest.mark.parametrize("endpoint", ["127.0.0.1:80", "ftp://x", "http://"])
def test_an_invalid_endpoint_is_refused(endpoint):
    with pytest.raises(errors.NotConfigured, match="endpoint"):
        ApiSettings.of({"project": "local-fleet", "endpoint": endpoint})


@pytest.mark.parametrize("zone", ["us-central2", "US-CENTRAL2-B", "a/b", ""])
def test_an_invalid_zone_is_refused_before_a_request(client, scripted, zone):
    with pytest.raises(errors.NotConfigured, match="invalid zone"):
        client.list_nodes([zone])
    assert scripted.asked == []


@pytest.mark.parametrize(
    "content", ["", "no json", "[]", '{"type": "service_account"}', '{"type": "external_account"}']
)
def test_an_invalid_or_missing_credentials_file_is_named_with_the_reason(
    tmp_path: Path, content: str
):
    file = tmp_path / "key.json"
    client = TpuApi(ApiSettings("local-fleet", "http://127.0.0.1:1", str(file)))
    with pytest.raises(errors.Unauthorized, match=r"key\.json: No such file.*gcloud auth"):
        client.list_nodes()
    file.write_text(content)
    with pytest.raises(errors.Unauthorized, match=r"key\.json: the type of its key"):
        client.list_nodes()


def test_application_default_credentials_are_used_without_a_file(scripted, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(scripted.credentials_file))
    scripted.script = [Reply({"nodes": [node()]})]
    client = TpuApi(ApiSettings("local-fleet", scripted.endpoint))
    assert len(client.list_nodes().entries) == 1
    assert scripted.tokens == 1


def test_requests_to_loopback_bypass_the_proxy_of_the_environment(client, scripted, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    scripted.script = [Reply({})]
    assert client.list_nodes().entries == []


def test_the_key_of_a_local_cloud_is_not_sent_to_another_token_endpoint(client, scripted):
    account = json.loads(scripted.credentials_file.read_text())
    account["token_uri"] = "http://192.0.2.1/token"
    scripted.credentials_file.write_text(json.dumps(account))
    with pytest.raises(errors.NoAnswer):
        client.list_nodes()
    assert scripted.asked == []


def creation(created: str, **outcome):
    """Return a finished create operation of the TPU demo, with an ``error`` or a ``response``."""
    target = f"projects/{PROJECT}/locations/{ZONE}/nodes/demo"
    metadata = {"verb": "create", "target": target, "createTime": created}
    return {"name": created, "metadata": metadata, "done": True, **outcome}


def test_creation_error_is_none_after_a_later_creation_has_succeeded(client, scripted):
    failed = creation("2026-01-01T00:00:00Z", error={"code": 8, "message": "no more capacity"})
    later = creation("2026-01-02T00:00:00Z", response={})

    scripted.script = [Reply({"operations": [failed]}), Reply({"operations": [later, failed]})]

    assert isinstance(client.creation_error(ZONE, "demo"), errors.CapacityError)
    assert client.creation_error(ZONE, "demo") is None


@pytest.mark.parametrize(
    ("message", "is_about_the_project"),
    [
        ("Permission 'tpu.nodes.list' denied on resource project mine", True),
        ("Permission 'tpu.nodes.list' denied on resource 'projects/x' (or it may not exist)", True),
        ("… denied on resource '//tpu.googleapis.com/projects/mine/locations/z'", True),
        ("Required 'compute.firewalls.list' permission for 'projects/x'", True),
        ("Required 'compute.networks.use' permission for 'projects/x/global/networks/a'", False),
        ("The account has no access to the network default", False),
    ],
)
def test_only_a_missing_permission_in_a_project_suggests_to_check_the_project(
    message, is_about_the_project
):
    text = str(errors.from_http(403, {"error": {"code": 403, "message": message}}, "list"))
    assert (errors.CHECK_PROJECT in text) == is_about_the_project
