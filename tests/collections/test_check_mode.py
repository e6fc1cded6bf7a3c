"""Every module that speaks to the cloud: --check asks for no change, and the second run makes none.

The API's own log is the witness. A module that is not in the table fails here.
"""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import (
    DEFAULT_FLEET_NAME,
    LABEL,
)

from harness.playbooks import ROOT, environment_of, play
from tests.collections.test_killed_create import KeyedMachines
from tests.localcloud.api.local_api import LocalApi, wait_for

PLUGINS = ROOT / "collections/ansible_collections/tpufleet/core/plugins"
API = {"api": "{{ tpu_api }}"}
KIND = {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base"}
ZONE = "locations/us-central2-b"
ONE = {"name": "one", "zone": "us-central2-b"}
FLEET = {"fleet": [{**ONE, **KIND}, {**ONE, **KIND, "name": "two", "queued": {}}]}

#: What each module is told, and whether it changes anything the first time. ``there`` is a TPU and
#: a queued resource that exist.
TABLE = {
    "tpu_node, present": ({**API, **ONE, **KIND, "tags": ["a"], "labels": {"b": "c"}}, True),
    "tpu_node, changed": (
        {**API, **ONE, **KIND, "name": "there", "accelerator_type": "v4-16", "labels": {"b": "c"}},
        True,
    ),
    "tpu_node, absent": ({**API, **ONE, "name": "there", "state": "absent"}, True),
    "tpu_node, started": ({**API, **ONE, "name": "there", "state": "started"}, False),
    "tpu_node, stopped": ({**API, **ONE, "name": "single", "state": "stopped"}, True),
    "tpu_queued_resource, present": ({**API, **ONE, **KIND, "tier": "spot"}, True),
    "tpu_queued_resource, absent": (
        {**API, **ONE, "name": "asked", "state": "absent", "force": True},
        True,
    ),
    "tpu_fleet, present": ({**API, **FLEET}, True),
    "tpu_fleet, absent": (
        {**API, "fleet": [{**ONE, **KIND, "name": "there"}], "state": "absent"},
        True,
    ),
    "tpu_plan": ({**API, **FLEET}, False),
    "doctor": ({}, False),
    "watch": (
        {
            "fleet_state": "{{ fleet_state }}",
            "answers": {},
            "project": str(ROOT),
            "kept": "{{ fleet_state }}",
            "asked_at": 0,
            "log": "{{ fleet_state }}/watch.log",
        },
        False,
    ),
    "vpc_firewall, present": ({**API, "ssh_from": ["203.0.113.0/28"]}, True),
    "vpc_firewall, absent": ({**API, "name": "older", "state": "absent"}, True),
}
#: They begin with what the local API has: a TPU, one of one worker, a request, a firewall rule.
READS = ("getGuestAttributes", "oauth2.", "localcloud.")


def imports_of(file: Path) -> set[Path]:
    found = re.findall(r"from (\.+)([a-z_.]+) import", file.read_text())
    return {file.parents[len(dots) - 1] / f"{name.replace('.', '/')}.py" for dots, name in found}


def speaks_to_the_cloud(name: str) -> bool:
    """Tell whether a module, or the action of its name, comes to Google's APIs by its imports."""
    todo = {file for kind in ("modules", "action") for file in PLUGINS.glob(f"{kind}/{name}.py")}
    seen: set[Path] = set()
    while todo:
        file = todo.pop()
        seen.add(file)
        # Changes of records in a bucket are shown in the tests of those; filters change nothing.
        found = {
            each
            for each in imports_of(file)
            if each.stem != "storage" and each.parent.name not in ("runs", "filter", "action")
        }
        if {"tpu_api", "http"} & {each.stem for each in found}:
            return True
        todo |= {each for each in found if each.exists()} - seen
    return False


def test_every_module_that_speaks_to_the_cloud_is_in_the_table():
    names = {file.stem for file in PLUGINS.glob("modules/*.py")}
    there = {name for name in names if speaks_to_the_cloud(name)}
    assert "tpu_node" in there
    assert there == {key.split(",")[0] for key in TABLE}


def changes(log: str) -> list[str]:
    """The requests that change something, as the server saw them."""
    lines = re.findall(r" request ((?:POST|PATCH|PUT|DELETE) .*)", log)
    return [line for line in lines if not any(word in line for word in READS)]


@pytest.fixture
def cloud(tmp_path: Path):
    api = LocalApi(tmp_path / "cloud", KeyedMachines())
    yield api
    api.halt()


def furnish(api: LocalApi, key: str) -> None:
    """Make what the entry of the table begins with."""
    if "there" in str(TABLE[key][0]):
        api.ready("there", labels={LABEL: DEFAULT_FLEET_NAME})
    if "single" in str(TABLE[key][0]):
        api.ready("single", acceleratorType="v4-8")
    if "asked" in str(TABLE[key][0]):
        spec = {
            "parent": f"projects/local-fleet/{ZONE}",
            "nodeId": "asked",
            "node": {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"},
        }
        path = f"{ZONE}/queuedResources"
        body = {"tpu": {"nodeSpec": [spec]}}
        assert api.call("POST", path, body, queuedResourceId="asked").status_code == 200
        wait_for(lambda: api.call("GET", f"{ZONE}/nodes/asked").status_code == 200 or None)
        api.state_is("asked", "READY")
    if "older" in str(TABLE[key][0]):
        rule = {
            "name": "older-rest",
            "description": "Made by tpufleet.core.vpc_firewall: nothing else",
            "denied": [{"IPProtocol": "all"}],
            "network": "projects/local-fleet/global/networks/default",
        }
        path = "/compute/v1/projects/local-fleet/global/firewalls"
        assert api.call("POST", path, rule).status_code == 200


def played(api: LocalApi, task: dict, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the task in check mode, then twice, keeping the API's log after each."""
    tasks = []
    for step in ("checked", "first", "second"):
        tasks.append({**task, "check_mode": step == "checked", "name": f"Task {step}"})
        copy = ["cp", str(api.state / "server.log"), str(tmp_path / f"{step}.log")]
        tasks.append(
            {
                "ansible.builtin.command": {"argv": copy},
                "changed_when": False,
                "name": f"Log {step}",
            }
        )
    book = tmp_path / "book.yml"
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "tasks": tasks}]))
    return play(environment_of(api), book, "--diff")


@pytest.mark.parametrize("key", TABLE)
def test_check_mode_and_a_second_run_change_nothing(cloud, tmp_path, key):
    options, changing = TABLE[key]
    furnish(cloud, key)
    before = len(changes(cloud.log()))
    done = played(cloud, {f"tpufleet.core.{key.split(',')[0]}": options}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    checked, first, second = (
        changes((tmp_path / f"{step}.log").read_text())[before:]
        for step in ("checked", "first", "second")
    )
    outcomes = re.findall(r"TASK \[Task .*?\n(?:.*\n)*?(ok|changed): \[localhost\]", done.stdout)
    assert outcomes == [*(["changed" if changing else "ok"] * 2), "ok"], done.stdout
    assert checked == []
    assert bool(first) == changing
    assert second == first
