"""The module run_output returns the output of runs to a controller, each part once."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.output_stream import (
    SEGMENT_BYTES,
    Attempt,
    Start,
    streams_at_end,
    write_attempt,
)

from tests.collections.running_modules import run_module


class Controller:
    """A controller that collects the output of the worker whose runs are in ``state_dir``."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.state: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}

    def collect(self, **options: Any) -> list[str]:
        """Call the module once; return the names of the files that it returned."""
        constants = {"STATE_DIR": str(self.state_dir)}
        result = run_module("run_output", state=self.state, constants=constants, **options)
        assert "failed" not in result, result
        assert not result["changed"]
        self.state, self.more = result["state"], result["more"]
        self.files.update({file["name"]: b64decode(file["content"]) for file in result["files"]})
        return [file["name"] for file in result["files"]]

    def log(self, attempt: str) -> bytes:
        names = sorted(name for name in self.files if name.startswith(f"{attempt}/log/"))
        return b"".join(self.files[name] for name in names)


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    (tmp_path / "runs").mkdir()
    return Controller(tmp_path)


def begin(controller: Controller, attempt: int, run: str = "mine", location: str = "") -> Path:
    """Begin an attempt of process 3; return the run's directory."""
    folder = controller.state_dir / "runs" / run
    folder.mkdir(exist_ok=True)
    start = Start(run, attempt, 3, "pod-w3", 1.5 + attempt)
    write_attempt(folder, Attempt(start, location, "", streams_at_end(folder)))
    return folder


def test_the_controller_gets_each_part_once_until_the_attempt_is_complete(controller):
    folder = begin(controller, 1)
    (folder / "log").write_text("one\n")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')

    first = controller.collect()

    assert first == ["mine/1/3/start.json", "mine/1/3/log/000000000000",
                     "mine/1/3/metrics/000000000000"]  # fmt: skip
    (folder / "log").write_text("one\ntwo\nlast words")
    assert controller.collect() == ["mine/1/3/log/000000000000"]
    (folder / "exit.json").write_text('{"attempt": 1, "code": "exited"}\n')
    assert controller.collect() == ["mine/1/3/log/000000000000", "mine/1/3/exit.json"]
    assert controller.files["mine/1/3/log/000000000000"] == b"one\ntwo\nlast words"
    assert json.loads(controller.files["mine/1/3/start.json"])["worker"] == "pod-w3"
    assert controller.collect() == []
    assert len(json.dumps(controller.state)) < 100


def test_a_long_log_comes_in_several_calls(controller):
    folder = begin(controller, 1)
    lines = b"".join(b"line %d\n" % number for number in range(100_000))
    (folder / "log").write_bytes(lines)

    calls = []
    while not calls or controller.more:
        calls.append(controller.collect(max_bytes=3 * SEGMENT_BYTES))

    assert controller.log("mine/1/3") == lines
    assert len(calls) > 2
    assert max(map(len, calls)) <= 5


def test_an_attempt_without_an_end_is_complete_when_the_next_one_begins(controller):
    folder = begin(controller, 1)
    (folder / "log").write_text("one\n")
    begin(controller, 2)
    (folder / "log").write_text("one\ntwo\n")

    controller.collect()

    assert (controller.log("mine/1/3"), controller.log("mine/2/3")) == (b"one\n", b"two\n")
    assert controller.state["mine"]["1"] == {"began": 2.5, "is_complete": True}


def test_output_that_the_worker_stores_in_a_bucket_itself_is_left_out(controller):
    folder = begin(controller, 1, location="gs://bucket/runs/mine")
    (folder / "log").write_text("one\n")

    assert controller.collect() == []
    assert controller.state == {}


def test_the_state_of_runs_that_are_not_requested_is_kept(controller):
    for run in ("mine", "other"):
        (begin(controller, 1, run) / "log").write_text("one\n")
    controller.collect()
    (controller.state_dir / "runs/mine/log").write_text("one\ntwo\n")

    assert controller.collect(runs=["other"]) == []
    assert controller.collect() == ["mine/1/3/log/000000000000"]


def test_the_state_of_another_worker_is_ignored(controller):
    begin(controller, 1)
    controller.state = {"mine": {"1": {"began": 9.5, "is_complete": True}}, "gone": {"1": {}}}

    assert controller.collect() == ["mine/1/3/start.json"]
    assert list(controller.state) == ["mine"]


def test_an_invalid_run_name_is_refused(controller):
    result = run_module("run_output", runs=["../x"])

    assert result["failed"]
    assert "invalid run name ('../x')" in result["msg"]


def test_a_worker_that_is_not_set_up_has_no_output(tmp_path):
    assert Controller(tmp_path / "missing").collect() == []
