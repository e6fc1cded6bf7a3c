"""status.yml -e follow=true redraws the status on a terminal, and prints new lines otherwise."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.action.status_follow import (
    StatusError,
    all_ended,
    follow,
    has_ended,
)

from harness.playbooks import command
from harness.process_tree import tree_of
from harness.valid_record import record_fields
from localcloud.local_cloud import PROJECT_ROOT
from tests.collections.view.terminal import SECONDS, on_terminal

FOLLOW = command("playbooks/status.yml", "-e", "follow=true")
ROWS = 14


@pytest.fixture
def record(local_api) -> Path:
    """The record of a run whose desired state is running, but whose TPU is gone."""
    folder = local_api.state / "fleet/runs"
    folder.mkdir(parents=True)
    file = folder / "mine.json"
    write(file, wanted="running")
    return file


def write(file: Path, **fields: Any) -> None:
    """Replace a record atomically, because the playbook may be reading it."""
    content = record_fields(file.stem, attempt=2, generation=3, **fields)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content))
    new.replace(file)


def terminal_environment(environment: dict[str, str]) -> dict[str, str]:
    settings = {
        "ANSIBLE_STDOUT_CALLBACK": "tpufleet.core.view",
        "TERM": "xterm",
        "COLUMNS": "120",
        "LINES": str(ROWS),
    }
    return {name: value for name, value in environment.items() if name != "CI"} | settings


def rows(screen: list[str], run: str = "mine") -> list[str]:
    return [line for line in screen if line.split()[:1] == [run]]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """An empty directory with a short path, since Ansible creates a socket there."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_terminal_redraws_the_status_in_place_until_ctrl_c_ends_all_processes(
    record, environment, temporary
):
    others = [f"run-{number}" for number in range(ROWS - 7)]
    for name in others:
        write(record.with_name(f"{name}.json"), wanted="running")
    directories = {"TMPDIR": str(temporary), "ANSIBLE_LOCAL_TEMP": str(temporary)}
    with on_terminal(FOLLOW, terminal_environment(environment) | directories) as terminal:
        terminal.read_until(rows)
        write(record, watch={"best_step": 70})
        screen = terminal.read_until(lambda screen: "70" in "".join(rows(screen)))
        # The runs fill the terminal, and each has one row.
        assert [len(rows(screen, name)) for name in ("mine", *others)] == [1] * (ROWS - 6)

        assert list(temporary.rglob("status.json")), terminal.screen
        pids = tree_of(terminal.process.pid)
        os.write(terminal.keyboard, b"\x03")
        terminal.read_until(lambda _: False)
        terminal.process.wait(SECONDS)
        for _ in range(SECONDS):
            if not any(Path(f"/proc/{pid}").exists() for pid in pids[1:]):
                break
            time.sleep(1)
        assert [pid for pid in pids[1:] if Path(f"/proc/{pid}").exists()] == []
    assert list(temporary.iterdir()) == []


def test_without_a_terminal_each_status_is_printed_below_the_previous_one_until_all_runs_have_ended(
    record, environment
):
    variables = environment | {"ANSIBLE_STDOUT_CALLBACK": "tpufleet.core.view"}
    with subprocess.Popen(
        FOLLOW, cwd=PROJECT_ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        printed = []
        for line in process.stdout:
            printed.append(line.decode())
            if rows(printed):
                write(record, wanted="stopped")

    assert process.returncode == 0
    assert len(rows(printed)) == 1
    assert len([line for line in printed if "status at " in line]) == 2


@pytest.mark.parametrize(
    ("state", "wanted", "ended"),
    [
        ("training", "running", False),
        ("failed", "running", False),  # has not ended: the watch may relaunch it
        ("stopping", "stopped", False),
        ("stopped", "stopped", True),
        ("done", "done", True),
        ("failed", "stopped", True),
        # Without a record, ``wanted`` is None.
        ("training", None, False),
        ("done", None, True),
    ],
)
def test_a_run_has_ended_when_it_is_not_active_and_not_wanted(state, wanted, ended):
    assert has_ended({"state": state, "wanted": wanted}) is ended


DONE = {"state": "done", "wanted": "done"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"runs": [DONE]}, True),
        ({"runs": [DONE, {"state": "training", "wanted": None}]}, False),
        # All runs were stopped, and their TPUs are deleted.
        ({}, True),
        # The run's new TPU is READY, but the run is not launched yet.
        ({"wanted": ["mine"]}, False),
        ({"wanted": None}, False),
        ({"workers": [{"worker": "pod-w0", "error": "can't be reached"}]}, False),
        ({"workers": [{"worker": "pod-w0", "run": "mine", "error": "ValueError"}]}, True),
    ],
)
def test_following_ends_when_no_run_is_wanted_and_every_worker_has_answered(status, expected):
    assert all_ended({"runs": [], "workers": [], "wanted": [], **status}) is expected


def status_with(line: str, *wanted: str) -> dict[str, Any]:
    return {"lines": [line], "wanted": list(wanted), "runs": [], "workers": []}


def followed(*answers: dict[str, Any] | StatusError) -> tuple[list[str], list[list[str]]]:
    """Run ``follow``, which gets one of these answers each time that it reads the status.

    Return its result, and the lines that it showed each time.
    """
    shown: list[list[str]] = []
    remaining = iter(answers)

    def read() -> dict[str, Any]:
        answer = next(remaining)
        if isinstance(answer, StatusError):
            raise answer
        return answer

    return follow(read, lambda lines: shown.append(list(lines)), lambda seconds: None), shown


def test_the_previous_status_stays_with_the_reason_if_a_new_one_cannot_be_read():
    training, done = status_with("training", "mine"), status_with("done")

    result, shown = followed(training, StatusError("no network"), done)

    assert shown == [
        ["training"],
        ["training", "The status could not be read again: no network"],
        ["done"],
    ]
    assert result == ["done"]


def test_following_fails_if_the_first_status_cannot_be_read():
    with pytest.raises(StatusError, match="no network"):
        followed(StatusError("no network"))
