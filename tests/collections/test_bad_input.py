"""Errors about bad input have the API's reason and the allowed values, but never a token."""

import json
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.node_state import ensure_present
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.queue_state import (
    ensure_requested,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.queued_resource import (
    QueuedResourceSpec,
)

from harness.playbooks import play
from harness.scripted_api import TOKEN, ZONE, Reply, ScriptedApi, error
from tests.collections.local_client import make
from tests.collections.running_actions import api_variable
from tests.collections.running_modules import run_module
from tests.collections.test_tpu_lifecycle import DEMO


def refusing(code: int, message: str, *, may_list_zones: bool = True, zone_exists: bool = True):
    """Return a handler that refuses every creation, and lists types, runtimes and zones."""
    lists = {
        "acceleratorTypes": [{"type": kind} for kind in ("v4-8", "v4-16", "v5p-8")],
        "runtimeVersions": [{"version": "tpu-ubuntu2204-base"}, {"version": "v2-alpha-tpuv5"}],
        "locations": [{"locationId": "us-central2-b"}, {"locationId": "us-east1-d"}],
    }

    def answer(asked):
        key = urlsplit(asked.path).path.rsplit("/", 1)[-1]
        if asked.method == "POST":
            return error(code, message)
        if key == "locations":
            return Reply({key: lists[key]}) if may_list_zones else error(403, "not for you")
        if key in lists:
            return Reply({key: lists[key]}) if zone_exists else error(403, "location not found")
        return error(404, "not found")

    return answer


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        (
            {"accelerator_type": "v4-9"},
            "us-central2-b has the accelerator types v4-8, v4-16, v5p-8",
        ),
        (
            {"runtime_version": "ubuntu"},
            "us-central2-b has the runtime versions tpu-ubuntu2204-base",
        ),
    ],
)
def test_an_error_about_type_or_runtime_has_the_apis_reason_and_the_allowed_values(
    client, scripted, change, allowed
):
    scripted.handler = refusing(400, "Invalid value")
    spec = replace(DEMO, **change)
    for ask in (
        lambda: ensure_present(client, spec, timeout=20),
        lambda: ensure_requested(client, QueuedResourceSpec("demo", spec), timeout=20),
    ):
        with pytest.raises(errors.InvalidRequest) as caught:
            ask()
        assert "Invalid value" in str(caught.value)
        assert allowed in str(caught.value)


def test_an_error_about_a_wrong_zone_lists_the_zones_with_tpus(client, scripted):
    scripted.handler = refusing(403, "Location us-central9-z is not found", zone_exists=False)
    with pytest.raises(errors.Forbidden, match="the zones with TPUs are us-central2-b") as caught:
        ensure_present(client, replace(DEMO, zone="us-central9-z"), timeout=20)
    assert "Location us-central9-z is not found" in str(caught.value)


@pytest.mark.parametrize(
    "resource",
    ["project mine", "'projects/mine'", "'//tpu.googleapis.com/projects/mine/locations/z'"],
)
def test_a_forbidden_project_is_reported_with_how_to_list_projects(client, scripted, resource):
    scripted.script = [error(403, f"Permission 'tpu.nodes.list' denied on resource {resource}")]
    with pytest.raises(errors.Forbidden, match="`gcloud projects list` shows"):
        client.list_nodes()


def test_an_error_that_is_not_about_the_project_does_not_suggest_listing_projects(client, scripted):
    scripted.script = [error(403, "The account has no access to the network default")]
    with pytest.raises(errors.Forbidden) as caught:
        client.list_nodes()
    assert "gcloud projects" not in str(caught.value)


@pytest.mark.parametrize(
    "change", [{"accelerator_type": "v4-17"}, {"runtime_version": "x"}, {"zone": "us-east9-z"}]
)
def test_the_local_cloud_refuses_in_one_line_with_the_allowed_values(api, change):
    with pytest.raises(errors.CloudError) as caught:
        ensure_present(api, replace(DEMO, **change), timeout=20)
    message = str(caught.value)
    assert message.isprintable()
    assert next(iter(change.values())) in message
    assert any(value in message for value in ("v4-16", "tpu-ubuntu2204-base", ZONE))
    assert "has the" not in message, "the values that the API's error names are not repeated"


TPU = {"name": "demo", "zone": ZONE, "runtime_version": "r", "accelerator_type": "v4-8"}
MODULES = {
    "tpu_node": TPU,
    "tpu_queued_resource": TPU,
    "vpc_firewall": {},
}


@pytest.mark.parametrize("name", MODULES)
def test_an_error_about_refused_credentials_names_the_login_command_and_no_token(scripted, name):
    scripted.handler = lambda asked: error(401, f"bad {asked.authorization}")
    result = run_module(name, api=scripted.api, **MODULES[name], _ansible_verbosity=5)
    assert (result["failed"], result["reason"]) == (True, "unauthorized")
    assert "gcloud auth application-default login" in result["msg"]
    assert TOKEN not in result["process_output"]


def test_the_error_about_a_queued_resource_with_tpus_names_the_option_that_deletes_them(
    local_api, api
):
    (created,) = make(api, {**TPU, "runtime_version": "tpu-ubuntu2204-base", "queued": {}})
    assert not created.failed, created.msg
    options = {"api": api_variable(local_api), "name": "demo", "zone": ZONE, "state": "absent"}
    result = run_module("tpu_queued_resource", **options)
    assert "To delete its TPUs, too, set force: true" in result["msg"]


def test_no_token_is_printed_at_the_highest_verbosity(
    environment,
    scripted: ScriptedApi,
    tmp_path,
):
    folder = tmp_path / "inventory"
    folder.mkdir()
    lines = [f"{key}: {value}" for key, value in scripted.api.items()]
    known = f"known_hosts_file: {tmp_path / 'known_hosts'}"
    (folder / "tpu.yml").write_text("\n".join(["plugin: tpufleet.core.tpu", known, *lines]))
    (folder / "group_vars").mkdir()
    (folder / "group_vars/all.yml").write_text("tpu_fleet: []\n")
    scripted.handler = lambda request: Reply({}) if request.method == "GET" else error(403, "no")
    book = tmp_path / "book.yml"
    task = {"tpufleet.core.tpu_node": {"api": "{{ tpu_api }}", **TPU}}
    book.write_text(json.dumps([{"hosts": "localhost", "tasks": [task]}]))
    output = ""
    for playbook in (book, "playbooks/plan.yml"):
        result = play(environment, playbook, "-vvvvv", inventory=str(folder))
        output += result.stdout + result.stderr
    assert scripted.tokens > 0
    assert "tpu_node" in output
    assert TOKEN not in output
    assert "PRIVATE KEY" not in output
