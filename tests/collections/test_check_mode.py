"""Modules that call the cloud request no change with --check, nor when they run a second time.

The API's log shows what they request. A test fails if such a module is missing from ``TABLE``.
"""

import re
from dataclasses import dataclass

import pytest
from ansible_collections.tpufleet.core.plugins.action import doctor, shared_disk, tpu_fleet, watch
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.fleet_name import (
    DEFAULT_FLEET_NAME,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import LABEL

from harness.playbooks import ROOT
from tests.collections.running_actions import api_variable, run_action
from tests.collections.running_modules import call_module
from tests.collections.test_killed_create import KeyedMachines
from tests.collections.test_plugin_rules import PLUGINS, imports
from tests.localcloud.api.local_api import NODE, LocalApi

KIND = {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base"}


def tpu(name: str, **more: object) -> dict[str, object]:
    """Return the options that name a TPU or a queued resource."""
    return {"name": name, "zone": "us-central2-b", **more}


def entry(name: str, **more: object) -> dict[str, object]:
    """Return one TPU of a fleet file."""
    return {"name": name, "zone": "us-central2-b", **KIND, **more}


FLEET = {
    "fleet": [
        entry("fleet-one", data_disks=[{"name": "new", "size_gb": 10}]),
        entry("fleet-two", queued={}),
    ]
}

DISK = {
    "fleet": [entry("sharing", data_disks=[{"name": "shared", "size_gb": 10}])],
    "name": "shared",
}

#: Options of each module, and whether its first run changes anything. All entries run in this
#: order against one API, so each has its own TPUs.
TABLE = {
    "tpu_fleet, planned": ({**FLEET, "state": "planned"}, False),
    "tpu_node, present": (tpu("new", **KIND, tags=["a"], labels={"b": "c"}), True),
    "tpu_node, changed": (
        tpu(
            "changing",
            **{**KIND, "accelerator_type": "v4-16"},
            labels={"b": "c"},
            metadata={"k": "v"},
        ),
        True,
    ),
    "tpu_node, absent": (tpu("going", state="absent"), True),
    "tpu_node, started": (tpu("running", state="started"), False),
    "tpu_node, stopped": (tpu("single", state="stopped"), True),
    "tpu_queued_resource, present": (tpu("request", **KIND, tier="spot"), True),
    "tpu_queued_resource, absent": (tpu("asked", state="absent", force=True), True),
    "tpu_fleet, present": (FLEET, True),
    "tpu_fleet, absent": ({"fleet": [entry("unwanted")], "state": "absent"}, True),
    "shared_disk, writable": ({**DISK, "state": "writable"}, True),
    "shared_disk, shared": (DISK, True),
    "shared_disk, detached": ({**DISK, "state": "detached"}, True),
    "doctor": ({}, False),
    "watch": ({"answers": {}, "project": str(ROOT), "asked_at": 0}, False),
    "vpc_firewall, present": ({"ssh_from": ["203.0.113.0/28"]}, True),
    "vpc_firewall, absent": ({"name": "older", "state": "absent"}, True),
}
ACTIONS = {"tpu_fleet": tpu_fleet, "shared_disk": shared_disk, "doctor": doctor, "watch": watch}
#: The shared code that gives a module a client of the Cloud TPU API and the Compute Engine API.
CLIENTS = {
    "module_utils.cloud.compute",
    "module_utils.cloud.module",
    "module_utils.cloud.tpu_api",
    "plugin_utils.fleet.cloud_tpus",
}
#: Parts of the log lines of requests that change no resource, although they use POST.
READS = ("getGuestAttributes", "oauth2.", "localcloud.")


def test_every_module_that_calls_the_cloud_is_in_the_table():
    plugins = [*PLUGINS.glob("modules/*.py"), *PLUGINS.glob("action/*.py")]
    calling = {file.stem for file in plugins if CLIENTS & {name for _, name in imports(file)}}
    assert calling == {key.split(",")[0] for key in TABLE}


def changes(log: str) -> list[str]:
    """Return the requests that change something, as the server logged them."""
    lines = re.findall(r" request ((?:POST|PATCH|PUT|DELETE) .*)", log)
    return [line for line in lines if not any(word in line for word in READS)]


def create_resources(api: LocalApi) -> None:
    """Create the resources that entries of the table start from."""
    for name in ("changing", "going", "running", "unwanted", "sharing"):
        api.ready(name, labels={LABEL: DEFAULT_FLEET_NAME})
    api.ready("single", acceleratorType="v4-8")
    spec = {"nodeId": "asked", "node": {**NODE, "acceleratorType": "v4-8"}}
    assert api.queue("asked", spec).status_code == 200
    api.state_is("asked", "READY")
    rule = {
        "name": "older-rest",
        "description": "Made by tpufleet.core.vpc_firewall for fleet default: nothing else",
        "denied": [{"IPProtocol": "all"}],
        "network": "projects/local-fleet/global/networks/default",
    }
    path = "/compute/v1/projects/local-fleet/global/firewalls"
    assert api.call("POST", path, rule).status_code == 200


@dataclass(frozen=True)
class Step:
    """The result of a module, and the number of changes that it requested from the API."""

    changed: bool
    requests: int
    diff: object
    message: str


def run_step(api: LocalApi, key: str, *, check: bool) -> Step:
    """Run the module or action plugin that a key of ``TABLE`` names."""
    name, options = key.split(",")[0], TABLE[key][0]
    variables = {"tpu_api": api_variable(api), "tpu_fleet": FLEET["fleet"]}
    variables |= {"hostvars": {}, "groups": {"all": []}}
    if name != "doctor":  # doctor has no option for the API; it reads the variable tpu_api
        options = {"api": variables["tpu_api"], **options}
    if name == "watch":
        folder = str(api.state / "fleet")
        options |= {"fleet_state": folder, "state_dir": folder, "log": f"{folder}/watch.log"}
    before = len(changes(api.log()))
    if name in ACTIONS:
        result = run_action(ACTIONS[name], variables, check=check, **options)
    else:
        result = call_module(name, check=check, **options)
    assert not result.get("failed"), result
    requests = len(changes(api.log())) - before
    return Step(result["changed"], requests, result.get("diff"), result.get("msg", ""))


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Step]]:
    """Run each entry of the table in check mode, and twice without it."""
    api = LocalApi(tmp_path_factory.mktemp("check") / "cloud", KeyedMachines())
    create_resources(api)
    steps = {
        key: [run_step(api, key, check=check) for check in (True, False, False)] for key in TABLE
    }
    api.halt()
    return steps


@pytest.mark.parametrize("key", TABLE)
def test_check_mode_and_a_second_run_change_nothing(steps, key):
    changing = TABLE[key][1]

    checked, first, second = steps[key]

    assert (checked.changed, checked.requests) == (changing, 0)
    assert (first.changed, first.requests > 0) == (changing, changing)
    assert first.diff == checked.diff
    assert (second.changed, second.requests) == (False, 0)


@pytest.mark.parametrize("key", [key for key, (_, is_changing) in TABLE.items() if is_changing])
def test_only_check_mode_reports_that_something_would_change(steps, key):
    checked, first, second = (step.message for step in steps[key])

    assert ("would be " in checked, "would be " in first + second) == (bool(checked), False)
