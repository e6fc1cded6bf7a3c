"""A client of a local cloud: creates TPUs, fleet files and run records; reads logged requests."""

import json
import time
from pathlib import Path

from ansible_collections.tpufleet.core.plugins.module_utils.cloud.changes import ChangeOptions
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.http import Polling
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.nodes import Node
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.session import ApiSettings
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import TpuApi
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.cloud_tpus import CloudTpus
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.observed import match
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.reconcile import Result, create
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.source import list_nodes
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.spec import parse_fleet

from harness.valid_record import record_fields
from tests.localcloud.api.local_api import NODE, PROJECT, LocalApi


def cloud_of(local_api: LocalApi) -> TpuApi:
    """Return a client of the local cloud that waits a twentieth of the usual time between polls."""
    settings = ApiSettings(PROJECT, local_api.endpoint, str(local_api.credentials_file))
    return TpuApi(settings, polling=Polling(lambda seconds: time.sleep(seconds / 20)))


def present(api: TpuApi, *entries) -> dict[str, Node]:
    """Return, by name, the TPUs of a fleet file with these entries that the API lists."""
    return match(parse_fleet([*entries]), list_nodes(CloudTpus(api), ["-"]), ["-"]).present


def make(api: TpuApi, *entries, **options) -> list[Result]:
    """Create or change the TPUs of a fleet file with these entries."""
    fleet, options = parse_fleet([*entries]), ChangeOptions(**{"timeout": 20, **options})
    return create(CloudTpus(api), fleet, present(api, *entries), options)


def fleet_options(folder: Path, *entries) -> tuple[str, str]:
    """Write a fleet file with these entries; return the ansible-playbook options that load it."""
    file = folder / "fleet.json"
    file.write_text(json.dumps({"tpu_fleet": entries}))
    return ("-e", f"@{file}")


def later_request(local_api: LocalApi, name: str, **fields) -> None:
    """Request a queued resource whose TPU, with these fields, may be created only after an hour."""
    node = {**NODE, "acceleratorType": "v4-8", **fields}
    policy = {"validAfterDuration": "3600s"}
    result = local_api.queue(name, {"nodeId": name, "node": node}, queueingPolicy=policy)
    assert result.status_code == 200


def store_record(local_api: LocalApi, run: str = "mine", **fields) -> Path:
    """Write a run record with these fields to the fleet state of the local cloud's inventory."""
    file = local_api.state / f"fleet/runs/{run}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record_fields(run, **fields)))
    return file


def changes(local_api: LocalApi, kind: str) -> list[str]:
    """Return the logged POST, PATCH and DELETE requests for a kind such as ``queuedResources``."""
    lines = [line.split("request ", 1)[-1] for line in local_api.log().splitlines()]
    verbs = ("POST", "PATCH", "DELETE")
    return [line for line in lines if line.startswith(verbs) and f"/{kind}" in line]
