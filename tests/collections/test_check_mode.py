"""Modules that call the cloud request no change with --check, nor when they run a second time.

The API's log shows what they request. A test fails if such a module is missing from ``TABLE``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.fleet_name import (
    DEFAULT_FLEET_NAME,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import (
    LABEL,
)

from harness.playbooks import ROOT, environment_of, play
from tests.collections.test_killed_create import KeyedMachines
from tests.localcloud.api.local_api import NODE, LocalApi

PLUGINS = ROOT / "collections/ansible_collections/tpufleet/core/plugins"
API = {"api": "{{ tpu_api }}"}
KIND = {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base"}


def tpu(name: str, **more: object) -> dict[str, object]:
    """Return the options that name a TPU or a queued resource."""
    return {**API, "name": name, "zone": "us-central2-b", **more}


def entry(name: str, **more: object) -> dict[str, object]:
    """Return an entry of a fleet."""
    return {"name": name, "zone": "us-central2-b", **KIND, **more}


FLEET = {**API, "fleet": [entry("fleet-one"), entry("fleet-two", queued={})]}

DISK = {
    **API,
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
    "tpu_fleet, absent": ({**API, "fleet": [entry("unwanted")], "state": "absent"}, True),
    "shared_disk, writable": ({**DISK, "state": "writable"}, True),
    "shared_disk, shared": (DISK, True),
    "doctor": ({}, False),
    "watch": (
        {
            "fleet_state": "{{ fleet_state }}",
            "answers": {},
            "project": str(ROOT),
            "state_dir": "{{ fleet_state }}",
            "asked_at": 0,
            "log": "{{ fleet_state }}/watch.log",
        },
        False,
    ),
    "vpc_firewall, present": ({**API, "ssh_from": ["203.0.113.0/28"]}, True),
    "vpc_firewall, absent": ({**API, "name": "older", "state": "absent"}, True),
}
STEPS = ("checked", "first", "second")
#: Requests that change nothing.
READS = ("getGuestAttributes", "oauth2.", "localcloud.")


def imports_of(file: Path) -> set[Path]:
    imports = re.findall(r"from (\.+)([a-z_.]+) import", file.read_text())
    return {file.parents[len(dots) - 1] / f"{name.replace('.', '/')}.py" for dots, name in imports}


def calls_the_cloud(name: str) -> bool:
    """Return whether a module, or the action of this name, imports a client of Google's APIs."""
    todo = {file for kind in ("modules", "action") for file in PLUGINS.glob(f"{kind}/{name}.py")}
    visited: set[Path] = set()
    while todo:
        file = todo.pop()
        visited.add(file)
        # Skip the code for run records in a bucket, which other tests cover, and filters, which
        # change nothing.
        imported = {
            path
            for path in imports_of(file)
            if path.stem != "storage" and path.parent.name not in ("runs", "filter", "action")
        }
        if {"tpu_api", "http"} & {path.stem for path in imported}:
            return True
        todo |= {path for path in imported if path.exists()} - visited
    return False


def test_every_module_that_calls_the_cloud_is_in_the_table():
    names = {file.stem for file in PLUGINS.glob("modules/*.py")}
    calling = {name for name in names if calls_the_cloud(name)}
    assert "tpu_node" in calling
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


def steps_of(log: Path) -> Iterator[dict]:
    """Yield three tasks per entry of ``TABLE``, the first in check mode.

    The name of a task includes the length of the API's log at the start of the task.
    """
    length = f"{{{{ lookup('ansible.builtin.file', '{log}', rstrip=false) | length }}}}"
    for number, (key, (options, _)) in enumerate(TABLE.items()):
        for step in STEPS:
            yield {
                "name": f"Task {number} {step} at {length}",
                f"tpufleet.core.{key.split(',')[0]}": options,
                "check_mode": step == "checked",
                "ignore_errors": True,
            }


@dataclass(frozen=True)
class PlaybookResult:
    """The output of the play and the API's log."""

    output: str
    log: str

    def outcome(self, number: int, step: str) -> str:
        """Return the result of a step in Ansible's output: ok, changed or fatal."""
        task = rf"TASK \[Task {number} {step} at \d+\](?:.*\n)*?(ok|changed|fatal): \[localhost\]"
        return re.findall(task, self.output)[0]

    def counts(self, number: int) -> list[int]:
        """Return how many changes the API has received before the first and after each step."""
        lengths = [*map(int, re.findall(r"TASK \[Task \d+ \w+ at (\d+)\]", self.output))]
        ends = [*lengths, len(self.log)][number * len(STEPS) :][: len(STEPS) + 1]
        return [len(changes(self.log[:end])) for end in ends]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> PlaybookResult:
    """Run all entries of the table in one play, because Ansible takes seconds to start."""
    folder = tmp_path_factory.mktemp("check")
    api = LocalApi(folder / "cloud", KeyedMachines())
    create_resources(api)
    book = folder / "book.yml"
    tasks = list(steps_of(api.state / "server.log"))
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "tasks": tasks}]))
    result = play(environment_of(api), book, "--diff")
    api.halt()
    return PlaybookResult(result.stdout + result.stderr, api.log())


@pytest.mark.parametrize("key", TABLE)
def test_check_mode_and_a_second_run_change_nothing(played, key):
    changing, number = TABLE[key][1], list(TABLE).index(key)

    outcomes = [played.outcome(number, step) for step in STEPS]
    before, checked, first, second = played.counts(number)

    assert outcomes == [*(["changed" if changing else "ok"] * 2), "ok"], played.output
    assert checked == before
    assert (first > checked) == changing
    assert second == first
