"""What the documents mark as tried is run here, or is the very command of a test on machines."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.collections.runs.records import ZONE, keep_release, record_fields
from tests.collections.test_playbooks import OURS, environment_of
from tests.docs.tried_blocks import ROOT, Block, blocks, given_by, gives, played, unsaid
from tests.localcloud.api.local_api import LocalApi

HERE, EMULATOR, EMPTY, PREEMPTED = "alone", "emulator", "empty emulator", "preempted emulator"
API = (EMULATOR, EMPTY, PREEMPTED)
RECORD = record_fields("shakespeare", tpu="demo", generation=2, workers=2, watch={"best_step": 70})
BLOCKS = blocks()
SPLIT = "--- next command ---"


def those(*how: str) -> list[Block]:
    return [block for block in BLOCKS if block.by in how]


def run(block: Block, environment: dict[str, str]) -> None:
    """Give the block's commands to one shell, and hold what it said against the page."""
    script = "\n".join(f"echo '{SPLIT}'\n{command}" for command in block.commands)
    done = subprocess.run(
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
    said = done.stdout.replace(f"{ROOT}/", "").replace(environment["HOME"], "~")
    assert done.returncode == block.code, said
    for (command, expected), answer in zip(block.steps, said.split(f"{SPLIT}\n")[1:], strict=True):
        assert unsaid(answer, expected) == [], f"{command} said:\n{answer}"


def shell(home: Path, **more: str) -> dict[str, str]:
    """The environment of a person who has just done what the quickstart says."""
    taken = {"ANSIBLE_CONFIG", "ANSIBLE_INVENTORY", "ANSIBLE_STDOUT_CALLBACK", "CI"}
    kept = {name: value for name, value in os.environ.items() if name not in taken}
    path = f"{ROOT}/.venv/bin:{os.environ['PATH']}"
    quiet = {"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}
    return {**kept, **quiet, "PATH": path, "HOME": str(home), **more}


def test_there_are_blocks_of_each_kind():
    assert those(HERE)
    assert those(EMULATOR)
    assert len(BLOCKS) > len(those(HERE, *API))


@pytest.mark.parametrize("block", those(HERE), ids=lambda block: block.where)
def test_a_block_that_needs_nothing_does_what_the_page_says(block: Block, tmp_path: Path):
    run(block, shell(tmp_path))


def lose_a_run(local_api: LocalApi) -> None:
    """Take the TPU away on which the run of the record was at its step 70."""
    records = local_api.state / "fleet/runs"
    records.mkdir(parents=True)
    node = local_api.ready("demo", schedulingConfig={"spot": True}, labels=OURS)
    nodes = [{"name": "demo", "zone": ZONE, "id": node["id"]}]
    (records / "shakespeare.json").write_text(json.dumps(RECORD | {"nodes": nodes}))
    keep_release(local_api.state / "fleet")
    local_api.call("POST", "/_localcloud/nodes/demo:preempt")
    local_api.state_is("demo", "PREEMPTED")


@pytest.mark.parametrize("block", those(*API), ids=lambda block: block.where)
def test_a_block_that_needs_only_the_api_does_what_the_page_says(
    block: Block, tmp_path: Path, local_api: LocalApi
):
    if block.by == EMULATOR:
        local_api.ready("demo", labels=OURS)
    elif block.by == PREEMPTED:
        lose_a_run(local_api)
    home = tmp_path / "home"
    home.mkdir()
    clouds = environment_of(local_api)
    names = ("TPUFLEET_LOCALCLOUD_DIR", "TPUFLEET_LOCALCLOUD", "ANSIBLE_LOCAL_TEMP")
    more = {name: clouds[name] for name in names}
    run(block, shell(home, ANSIBLE_INVENTORY="inventory/local", **more))


@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if block.by not in (HERE, *API)],
    ids=lambda block: block.where,
)
def test_a_block_that_needs_machines_is_what_a_test_on_machines_gives(block: Block):
    calls = [call for file in block.by.split() for call in given_by(ROOT / file)]
    not_given = [
        command
        for command in block.commands
        if not any(gives(call, played(command)) for call in calls)
    ]
    assert not_given == []


def test_a_command_with_another_option_is_not_the_one_that_a_test_gives():
    assert gives(["train.yml", "-e", "config=*"], ["train.yml", "-e", "config=a.yml"])
    assert not gives(["train.yml", "-e", "config=*"], ["train.yml", "-e", "sweep=a.yml"])
    assert not gives(["playbooks/kill.yml", "*"], ["playbooks/kill.yml", "-e", "run=a"])


def test_output_that_was_another_is_seen_and_numbers_are_not():
    assert unsaid("a 12 s\nb\n", ("a 3.5 s", "…")) == []
    assert unsaid("a 12 s\nb\n", ("c",)) == ["c"]
    assert unsaid("b\na\n", ("a", "b")) == ["b"]
