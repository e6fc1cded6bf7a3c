"""The controller stores the output that workers return, and validates every field of it."""

import base64
import json
from types import SimpleNamespace

import pytest
from ansible_collections.tpufleet.core.plugins.action import collect_outputs
from ansible_collections.tpufleet.core.plugins.action.collect_outputs import (
    COLLECTED,
    MAX_CALLS,
    collect,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.output_stream import (
    SEGMENT_BYTES,
    Attempt,
    Start,
    streams_at_end,
    write_attempt,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs import objects
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.objects import (
    OutputDirectory,
    OutputError,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.reader import stored_processes
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.summary import summary_of
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.uncollected import uncollected

from harness.stored_output import EXITS, START_TIME, attempt, content_of, jsonl, line
from tests.collections.running_actions import run_action
from tests.collections.running_modules import run_module

OBJECTS = attempt(log=b"one\ntwo\n", metrics=b"{}\n", end=EXITS["crashed"])


def file(name, content):
    return {"name": name, "content": base64.b64encode(content).decode()}


def states(directory):
    return list((directory / COLLECTED).glob("*.json"))


class Worker:
    """A worker that returns one file per call; ``state`` counts the files returned so far."""

    def __init__(self, objects):
        self.files = [file(*stored) for stored in objects.items()]
        self.received_states = []

    def __call__(self, state):
        self.received_states.append(state)
        count = state.get("done", 0)
        more = count + 1 < len(self.files)
        return {
            "files": self.files[count : count + 1],
            "state": {"done": min(count + 1, len(self.files))},
            "more": more,
        }


def test_every_file_of_a_worker_is_requested_and_stored_once(tmp_path):
    worker = Worker(OBJECTS)
    result = collect(tmp_path, "pod-w0", worker)
    assert result == {"changed": True, "files": len(OBJECTS), "more": False}
    assert content_of(OutputDirectory(tmp_path)) == OBJECTS
    assert collect(tmp_path, "pod-w0", worker) == {"changed": False, "files": 0, "more": False}
    assert worker.received_states[-1] == {"done": len(OBJECTS)}


def test_a_worker_with_endless_output_is_continued_in_the_next_pass(tmp_path):
    received_states = []

    def endless(state):
        received_states.append(state)
        return {"files": [], "state": {}, "more": True}

    assert collect(tmp_path, "pod-w0", endless)["more"]
    assert len(received_states) == MAX_CALLS


def test_a_worker_whose_output_is_being_copied_is_not_asked_again(tmp_path):
    worker, other = Worker(OBJECTS), Worker(OBJECTS)

    def ask(state):
        nothing = {"changed": False, "files": 0, "more": False}
        assert collect(tmp_path, "pod-w0", other) == nothing
        assert collect(tmp_path, "pod-w1", Worker(OBJECTS))["changed"] == (not state)
        return worker(state)

    assert collect(tmp_path, "pod-w0", ask)["changed"]
    assert other.received_states == []
    assert not collect(tmp_path, "pod-w0", worker)["changed"]


def test_a_dry_run_asks_once_and_writes_nothing(tmp_path):
    worker = Worker(OBJECTS)
    result = collect(tmp_path, "pod-w0", worker, is_dry=True)
    assert result == {"changed": True, "files": 1, "more": False}
    assert (len(worker.received_states), list(tmp_path.iterdir())) == (1, [])
    collect(tmp_path, "pod-w0", worker)
    assert not collect(tmp_path, "pod-w0", worker, is_dry=True)["changed"]


def test_workers_whose_output_was_not_copied_are_named_with_the_reason(tmp_path):
    failed = {"failed": True, "msg": "no\x1b[31m such\nmodule"}
    answers = {
        "w0": collect(tmp_path, "w0", Worker(OBJECTS)),
        "w1": {"skipped": True},
        "w2": {},
        "w3": collect(tmp_path, "w3", lambda state: failed),
        "w4": failed,
        "w5": collect(tmp_path, "../w5", lambda state: {"files": [], "state": {}, "more": True}),
    }
    more = "w5: it has more output than one pass copies. Run the playbook again"
    assert uncollected(answers) == ["w[3-4]: no such module", more]
    assert uncollected(answers, ["w0", "w4"]) == ["w4: no such module"]
    assert len(states(tmp_path)) == 2  # w0 and w5: ../w5 leads to no other directory


def test_all_output_is_requested_again_after_a_damaged_state(tmp_path):
    worker = Worker(OBJECTS)
    collect(tmp_path, "pod-w0", worker)
    [path] = states(tmp_path)
    path.write_text("[")
    assert collect(tmp_path, "pod-w0", worker)["files"] == len(OBJECTS)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"files": None}, "no list of files"),
        ({"files": {}}, "no list of files"),
        ({"files": ["mine/1/0/exit.json"]}, "a file is not a dictionary"),
        ({"files": [{"name": "mine/1/0/exit.json", "content": "%"}]}, "is not base64"),
        ({"files": [], "state": []}, "invalid state"),
        ({"files": [], "state": {"a": "x" * (1 << 22)}}, "invalid state"),
    ],
)
def test_malformed_output_from_a_worker_is_refused(tmp_path, answer, error):
    with pytest.raises(OutputError, match=error):
        collect(tmp_path / "outputs", "w0", lambda _: {"state": {}, **answer})
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size] == []


@pytest.mark.parametrize(
    "hostile",
    [
        {"content": ""},
        file("../outside", b"x"),
        file("/etc/passwd", b"x"),
        file("mine/1/0/log/../../../../x", b"x"),
        file(".collected/1/0/exit.json", b"x"),
        file("mine/1/0/log/000000000000", b"x" * (SEGMENT_BYTES + 1)),
    ],
)
def test_a_hostile_file_is_skipped_with_a_warning(tmp_path, hostile):
    answer = {"files": [hostile, *Worker(OBJECTS).files], "state": {"done": 1}}
    result = collect(tmp_path / "outputs", "w0", lambda state: answer)
    assert result["files"] == len(OBJECTS)
    assert "w0: 1 files of its runs were not copied" in result["warnings"][0]
    assert content_of(OutputDirectory(tmp_path / "outputs")) == OBJECTS
    files = {path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size}
    assert len(files) == len(OBJECTS) + 1
    assert json.loads(states(tmp_path / "outputs")[0].read_text()) == {"done": 1}


@pytest.fixture
def collect_mine(monkeypatch):
    """Return a function that runs the action for the run mine with a worker's ``answer``.

    The function returns the action's result and the options of the module run_output.
    """

    def run(answer, folder, *, check=False):
        requested = []
        monkeypatch.setattr(
            collect_outputs.ActionModule,
            "_execute_module",
            lambda _, module_args, **__: requested.append(module_args) or answer,
        )
        options = {"directory": str(folder), "run": "mine"}
        host = {"inventory_hostname": "w0"}
        return run_action(collect_outputs, host, check=check, **options), requested

    return run


ONE_FILE = {"files": [file("mine/1/0/exit.json", b"{}")], "state": {}, "more": False}


@pytest.mark.parametrize("check", [False, True])
def test_output_of_the_named_run_is_requested_and_stored_unless_in_check_mode(
    tmp_path, collect_mine, check
):
    result, requested = collect_mine(ONE_FILE, tmp_path / "outputs", check=check)

    assert result["changed"]
    assert requested == [{"state": {}, "runs": ["mine"]}]
    assert (tmp_path / "outputs").exists() == (not check)


@pytest.mark.parametrize(
    ("answer", "folder", "error"),
    [({}, "outputs", "no list of files"), (ONE_FILE, "file/outputs", "Not a directory")],
)
def test_an_error_is_returned_and_not_raised(tmp_path, collect_mine, answer, folder, error):
    """Ansible ignores a task's failed_when if the action raises an exception."""
    (tmp_path / "file").touch()

    result, _ = collect_mine(answer, tmp_path / folder)

    assert result["failed"]
    assert error in result["msg"]


def test_nothing_is_stored_on_a_disk_that_is_nearly_full(tmp_path, monkeypatch):
    monkeypatch.setattr(objects.shutil, "disk_usage", lambda path: SimpleNamespace(free=9 << 20))
    with pytest.raises(OutputError, match=r"less than 1 GiB is free on its disk \(9 MiB\)"):
        collect(tmp_path, "pod-w0", Worker(OBJECTS))
    assert (states(tmp_path), content_of(OutputDirectory(tmp_path))) == ([], {})


def test_output_is_collected_while_a_trainer_runs_and_after_its_end(tmp_path):
    run, store = tmp_path / "state/runs/mine", OutputDirectory(tmp_path / "outputs")
    run.mkdir(parents=True)
    start = Start("mine", 1, 0, "pod-w0", START_TIME)
    write_attempt(run, Attempt(start, "", "", streams_at_end(run)))

    def ask(state):
        return run_module(
            "run_output", state=state, constants={"STATE_DIR": str(tmp_path / "state")}
        )

    def collected():
        collect(tmp_path / "outputs", "pod-w0", ask)
        return summary_of(store, "mine", stored_processes(store.list("mine")))

    with (run / "metrics.jsonl").open("ab") as metrics, (run / "log").open("ab") as log:
        metrics.write(jsonl(map(line, range(1, 2001))))
        log.write(b"half of it\n")
        metrics.flush(), log.flush()
        first = collected()
        metrics.write(jsonl(map(line, range(2001, 3001))))
        log.write(b"no memory")
    (run / "exit.json").write_text(
        json.dumps({"attempt": 1, "time": START_TIME, **EXITS["crashed"]})
    )
    second = collected()

    assert (first.last["step"], first.log, first.attempts[0].ended) == (2000, ("half of it",), None)
    assert (second.last["step"], second.log) == (3000, ("half of it", "no memory"))
    assert (second.error, second.attempts[0].ended) == ("no memory", START_TIME)
    assert collect(tmp_path / "outputs", "pod-w0", ask)["files"] == 0
