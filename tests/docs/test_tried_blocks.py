"""Command blocks marked as tried in the documentation are run here, or by a test on machines."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from harness.playbooks import OURS, environment_of
from tests.collections.runs.records import ZONE, keep_release, record_fields
from tests.docs.tried_blocks import (
    ROOT,
    Block,
    arguments,
    blocks,
    calls_of,
    matches,
    missing_lines,
    unmarked,
)
from tests.localcloud.api.local_api import LocalApi

HERE, EMULATOR, EMPTY = "alone", "emulator", "empty emulator"
FOREIGN, PREEMPTED = "foreign emulator", "preempted emulator"
API = (EMULATOR, EMPTY, FOREIGN, PREEMPTED)
RECORD = record_fields("shakespeare", tpu="demo", generation=2, workers=2, watch={"best_step": 70})
BLOCKS = blocks()
SPLIT = "--- next command ---"


def blocks_by(*tried_by: str) -> list[Block]:
    return [block for block in BLOCKS if block.by in tried_by]


def grouped(found: list[Block]) -> list[list[Block]]:
    """Group blocks that have the same mark and only commands of the group's first block."""
    groups: list[list[Block]] = []
    for block in sorted(found, key=lambda block: len(block.steps), reverse=True):
        for group in groups:
            first = group[0]
            has_commands = set(block.commands) <= set(first.commands)
            if has_commands and (block.by, block.code) == (first.by, first.code):
                group.append(block)
                break
        else:
            groups.append([block])
    return groups


def locations(group: list[Block]) -> str:
    return " ".join(block.location for block in group)


def run(group: list[Block], environment: dict[str, str]) -> None:
    """Run the first block's commands in one shell; check the output that each block shows."""
    first = group[0]
    script = "\n".join(f"echo '{SPLIT}'\n{command}" for command in first.commands)
    result = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    output = result.stdout.replace(f"{ROOT}/", "").replace(environment["HOME"], "~")
    assert result.returncode == first.code, output
    printed = dict(zip(first.commands, output.split(f"{SPLIT}\n")[1:], strict=True))
    for block in group:
        for command, expected in block.steps:
            text = f"{block.location}: {command} printed:\n{printed[command]}"
            assert missing_lines(printed[command], expected) == [], text


def shell(home: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a user who has followed the quickstart."""
    removed = {"ANSIBLE_CONFIG", "ANSIBLE_INVENTORY", "ANSIBLE_STDOUT_CALLBACK", "CI"}
    inherited = {name: value for name, value in os.environ.items() if name not in removed}
    path = f"{ROOT}/.venv/bin:{os.environ['PATH']}"
    quiet = {"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}
    return {**inherited, **quiet, "PATH": path, "HOME": str(home), **variables}


def test_each_block_of_commands_has_a_mark():
    assert unmarked() == []


def test_there_are_blocks_of_each_kind():
    assert blocks_by(HERE)
    assert blocks_by(EMULATOR)
    assert len(BLOCKS) > len(blocks_by(HERE, *API))


@pytest.mark.parametrize("group", grouped(blocks_by(HERE)), ids=locations)
def test_a_block_without_a_cloud_prints_what_the_page_shows(group: list[Block], tmp_path: Path):
    run(group, shell(tmp_path))


def lose_a_run(local_api: LocalApi) -> None:
    """Create the record of a run at step 70, and preempt its TPU."""
    records = local_api.state / "fleet/runs"
    records.mkdir(parents=True)
    node = local_api.ready("demo", schedulingConfig={"spot": True}, labels=OURS)
    nodes = [{"name": "demo", "zone": ZONE, "id": node["id"]}]
    (records / "shakespeare.json").write_text(json.dumps(RECORD | {"nodes": nodes}))
    keep_release(local_api.state / "fleet")
    local_api.call("POST", "/_localcloud/nodes/demo:preempt")
    local_api.state_is("demo", "PREEMPTED")


@pytest.mark.parametrize("group", grouped(blocks_by(*API)), ids=locations)
def test_a_block_with_the_api_prints_what_the_page_shows(
    group: list[Block], tmp_path: Path, local_api: LocalApi
):
    state = group[0].by
    if state == EMULATOR:
        local_api.ready("demo", labels=OURS)
    elif state == FOREIGN:
        local_api.ready("demo", schedulingConfig={"spot": True})
    elif state == PREEMPTED:
        lose_a_run(local_api)
    home = tmp_path / "home"
    home.mkdir()
    cloud_environment = environment_of(local_api)
    names = ("TPUFLEET_LOCALCLOUD_DIR", "TPUFLEET_LOCALCLOUD", "ANSIBLE_LOCAL_TEMP")
    variables = {name: cloud_environment[name] for name in names}
    run(group, shell(home, ANSIBLE_INVENTORY="inventory/local", **variables))


@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if block.by not in (HERE, *API)],
    ids=lambda block: block.location,
)
def test_a_block_with_machines_is_run_by_the_named_test(block: Block):
    calls = [call for file in block.by.split() for call in calls_of(ROOT / file)]
    not_run = [
        command
        for command in block.commands
        if not any(matches(call, arguments(command)) for call in calls)
    ]
    assert not_run == []


def test_a_call_matches_a_command_only_with_the_same_options():
    assert matches(["train.yml", "-e", "config=*"], ["train.yml", "-e", "config=a.yml"])
    assert not matches(["train.yml", "-e", "config=*"], ["train.yml", "-e", "sweep=a.yml"])
    assert not matches(["playbooks/kill.yml", "*"], ["playbooks/kill.yml", "-e", "run=a"])


def test_output_is_compared_in_order_and_without_numbers():
    assert missing_lines("a 12 s\nb\n", ("a 3.5 s", "…")) == []
    assert missing_lines("a 12 s\nb\n", ("c",)) == ["c"]
    assert missing_lines("b\na\n", ("a", "b")) == ["b"]
