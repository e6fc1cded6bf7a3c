"""Errors about bad input have the API's reason and the allowed values, but never a token."""

import json
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.changes import ChangeOptions
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
    ("change", "code", "kind", "allowed"),
    [
        (
            {"accelerator_type": "v4-9"},
            400,
            errors.InvalidRequest,
            "accelerator types v4-8, v4-16, v5p-8",
        ),
        (
            {"runtime_version": "ubuntu"},
            404,
            errors.NotFound,
            "runtime versions tpu-ubuntu2204-base, v2-alpha-",
        ),
        (
            {"zone": "us-central9-z"},
            403,
            errors.Forbidden,
            "the zones with TPUs are us-central2-b",
        ),
    ],
)
@pytest.mark.parametrize("queued", [False, True])
def test_an_error_about_type_runtime_or_zone_has_the_apis_reason_and_the_allowed_values(
    client, scripted, change, code, kind, allowed, queued
):
    scripted.handler = refusing(code, "Invalid value", zone_exists="zone" not in change)
    spec = replace(DEMO, **change)
    with pytest.raises(kind, match=f"Invalid value.*{allowed}"):
        if queued:
            ensure_requested(client, QueuedResourceSpec("demo", spec), ChangeOptions())
        else:
            ensure_present(client, spec, ChangeOptions())


@pytest.mark.parametrize(
    ("message", "is_about_project"),
    [("denied on resource projects/mine", True), ("the network is not yours", False)],
)
def test_a_refused_creation_advises_either_another_project_or_another_fleet_file(
    client, scripted, message, is_about_project
):
    scripted.handler = refusing(403, message)
    with pytest.raises(errors.Forbidden, match=message) as refused:
        ensure_present(client, DEMO, ChangeOptions())
    assert (errors.CHECK_PROJECT in str(refused.value)) == is_about_project
    assert ("fix it in fleet.yml" in str(refused.value)) != is_about_project


TPU = {"name": "demo", "zone": ZONE, "runtime_version": "r", "accelerator_type": "v4-8"}


def test_an_error_about_refused_credentials_names_the_login_command_and_no_token(scripted):
    scripted.handler = lambda asked: error(401, f"bad {asked.authorization}")
    result = run_module("tpu_node", api=scripted.api, **TPU, _ansible_verbosity=5)
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


def test_no_token_is_printed_at_the_highest_verbosity(environment, scripted: ScriptedApi, tmp_path):
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
    result = play(environment, "playbooks/plan.yml", str(book), "-vvvvv", inventory=str(folder))
    output = result.stdout + result.stderr
    assert scripted.tokens > 0
    assert "tpu_node" in output
    assert TOKEN not in output
    assert "PRIVATE KEY" not in output
