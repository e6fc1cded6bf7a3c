"""The done marker, which a run's unit writes into its checkpoint directory."""

import json
import socket
import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.module_utils.worker.contract import DONE_MARKER
from ansible_collections.tpufleet.core.plugins.module_utils.worker.done_marker import (
    DoneMarker,
    parse_marker,
    parse_text,
    read_marker,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import WorkerPaths
from ansible_collections.tpufleet.core.plugins.modules import run as run_module
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.done_marker import read_done_marker
from hypothesis import given
from hypothesis import strategies as st

from harness.playbooks import ROOT
from harness.valid_record import process

ATTEMPT_END = ROOT / "roles/run/files/attempt_end"
PARAMS = {"device_glob": "", "preemptible": False, "image_error": ""}
DONE = {"SERVICE_RESULT": "success", "EXIT_CODE": "exited", "EXIT_STATUS": "0"}


def end(tmp_path: Path, checkpoints: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """End attempt 3 of the run "mine" as its unit does."""
    run_dir = tmp_path / "run"
    run_dir.mkdir(exist_ok=True)
    defaults = {
        "PATH": "/nowhere",
        "TPUFLEET_RUN_DIR": str(run_dir),
        "TPUFLEET_ATTEMPT": "3",
        "TPUFLEET_PROCESS_ID": "0",
        "TPUFLEET_CHECKPOINTS": checkpoints,
    }
    ended = subprocess.run(
        [ATTEMPT_END, "mine"],
        env=defaults | DONE | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads((run_dir / "exit.json").read_text())["attempt"] == 3
    return ended


def test_process_0_of_a_run_that_is_done_leaves_a_marker_in_the_directory(tmp_path):
    directory = tmp_path / "not/created/yet"

    end(tmp_path, str(directory))

    marker = read_marker(str(directory), "mine", {})
    assert (marker.run, marker.attempt) == ("mine", 3)
    assert marker.time == pytest.approx(time.time(), abs=300)
    assert [path.name for path in directory.iterdir()] == [DONE_MARKER]


def test_process_0_of_a_run_that_is_done_leaves_a_marker_in_the_bucket(
    tmp_path, emulator, bucket_api
):
    location, environment = "gs://fleet/checkpoints/mine", {"STORAGE_EMULATOR_HOST": emulator}

    end(tmp_path, location, **environment)

    assert read_done_marker(location, "mine", bucket_api).attempt == 3
    assert read_marker(location, "mine", environment).attempt == 3
    assert read_done_marker(location, "other", bucket_api) is None
    assert read_done_marker("gs://fleet/checkpoints/other", "other", bucket_api) is None
    assert read_marker("gs://fleet/checkpoints/other", "other", environment) is None


@pytest.mark.parametrize(
    "environ",
    [
        {"EXIT_STATUS": "75"},
        {"EXIT_STATUS": "1"},
        {"EXIT_CODE": "killed", "EXIT_STATUS": "TERM"},
        {"EXIT_CODE": "killed", "EXIT_STATUS": "0"},
        {"TPUFLEET_PROCESS_ID": "1"},
    ],
    ids=lambda environ: " ".join(environ.values()),
)
def test_any_other_end_of_a_process_leaves_no_marker(tmp_path, environ):
    end(tmp_path, str(tmp_path / "checkpoints"), **environ)

    assert not (tmp_path / "checkpoints").exists()


def test_a_marker_is_not_written_through_a_symlink(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")

    ended = end(tmp_path, str(tmp_path / "checkpoints"))

    assert f"{tmp_path}/checkpoints/{DONE_MARKER} cannot be written" in ended.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_symlink_at_the_path_of_the_marker_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("as before")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / DONE_MARKER).symlink_to(tmp_path / "elsewhere")

    end(tmp_path, str(tmp_path / "checkpoints"))

    assert (tmp_path / "elsewhere").read_text() == "as before"
    assert read_marker(str(tmp_path / "checkpoints"), "mine", {}).attempt == 3


def test_an_unreachable_bucket_does_not_fail_the_run(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"

    ended = end(tmp_path, "gs://b/mine", STORAGE_EMULATOR_HOST=address)

    assert "gs://b/mine/tpufleet-done.json cannot be written" in ended.stderr


@pytest.fixture
def read_after(monkeypatch):
    """Return a function that reads a marker while the bucket answers with the given error."""

    def read(error: errors.CloudError) -> DoneMarker | None:
        monkeypatch.setattr(Bucket, "content", Mock(side_effect=error))
        api = {"project": "a-project", "storage_endpoint": "http://127.0.0.1:1"}
        return read_done_marker("gs://b/mine", "mine", api)

    return read


@pytest.mark.parametrize("error", [errors.NotFound, errors.Forbidden, errors.NotConfigured])
def test_a_marker_in_a_bucket_that_the_controller_cannot_read_counts_as_missing(read_after, error):
    assert read_after(error("no")) is None


def test_an_unreachable_bucket_is_an_error_and_not_a_missing_marker(read_after):
    with pytest.raises(errors.NoAnswer):
        read_after(errors.NoAnswer("no answer"))


VALUES = st.integers() | st.floats() | st.sampled_from([None, True, "3", [1]])
MARKERS = st.fixed_dictionaries({"run": st.just("mine"), "attempt": VALUES, "time": VALUES})


@given(st.binary(max_size=20) | (VALUES | MARKERS).map(json.dumps).map(str.encode))
def test_an_invalid_marker_is_ignored(text):
    marker = parse_text(text, "mine")

    assert marker is None or (marker.attempt >= 1 and marker.run == "mine")


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"run": "other", "attempt": 3, "time": 1},
        {"run": "mine", "attempt": True, "time": 1},
        {"run": "mine", "attempt": "3", "time": 1},
        {"run": "mine", "attempt": 0, "time": 1},
        {"run": "mine", "attempt": 3, "time": float("inf")},
        {"run": "mine", "attempt": 3, "time": 10**400},
        {"run": "mine", "attempt": 3},
    ],
)
def test_a_marker_with_an_invalid_field_is_ignored(value):
    assert parse_marker(value, "mine") is None


def launched_again(tmp_path, monkeypatch, attempt: int, launched_at: float = 0.0) -> str:
    """Return the status that a new worker reports for a run whose newest attempt is ``attempt``."""
    launched = process(attempt=attempt, checkpoints=str(tmp_path / "checkpoints/mine"))
    paths = WorkerPaths(tmp_path / "opt", tmp_path / "state", tmp_path / "etc")
    monkeypatch.setattr(run_module, "process_of", lambda *_: launched)
    monkeypatch.setattr(run_module, "unit_states", lambda *_, **__: {"mine": {}})
    monkeypatch.setattr(run_module, "blockers", lambda *_: [])
    monkeypatch.setattr(run_module, "release_problem", lambda *_: "")
    finished = {"finished_attempt": attempt, "finished_launch": launched_at}
    return run_module.checked(PARAMS | finished, paths, check=False)["status"]


@pytest.mark.parametrize(
    ("recorded", "launched_s_ago", "status"),
    [(3, 60.0, "done"), (4, 60.0, "absent"), (3, -3600.0, "absent")],
    ids=["done", "a later attempt", "an older run of this name"],
)
def test_a_new_worker_does_not_start_a_run_whose_recorded_attempt_is_done(
    tmp_path, monkeypatch, recorded, launched_s_ago, status
):
    end(tmp_path, str(tmp_path / "checkpoints/mine"))
    launched_at = time.time() - launched_s_ago

    assert launched_again(tmp_path, monkeypatch, recorded, launched_at) == status


def test_a_launch_warns_if_the_done_marker_cannot_be_read(tmp_path, monkeypatch):
    def unreadable(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(run_module, "read_marker", unreadable)
    paths = WorkerPaths(tmp_path / "opt", tmp_path / "state", tmp_path / "etc")
    launched_again(tmp_path, monkeypatch, 3)

    answer = run_module.checked(
        PARAMS | {"finished_attempt": 3, "finished_launch": 0.0}, paths, check=False
    )

    assert answer["status"] == "absent"
    assert "cannot check whether the run is done (Input/output error)" in answer["blockers"][0]
