"""The program that stores the output of runs, with an emulated bucket."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.module_utils.worker.output_stream import (
    Attempt,
    Start,
    streams_at_end,
    write_attempt,
)

from harness.emulated_storage import BUCKET, emulated_storage
from harness.scripted_api import Reply, Request, error
from harness.unit_program import PROGRAMS, load_program, unit_program
from harness.valid_record import launch_spec
from tests.collections.modules.test_launchers import free_port
from tests.localcloud.api.local_api import wait_for

store_outputs = load_program("store_outputs")
LONG_LOG = "".join(f"line {number} {'.' * 100}\n" for number in range(5000))
"""A log of several segments."""


class Worker:
    """A worker with the run ``mine``, whose output is stored in a bucket."""

    def __init__(self, state: Path, emulator: str) -> None:
        self.state, self.folder, self.emulator = state, state / "runs/mine", emulator
        self.location = f"gs://{BUCKET}/{state.name}/mine"
        self.folder.mkdir(parents=True)
        self.outputs = store_outputs.Outputs(state / "runs")

    def begin(self, number: int, run: str = "mine", **fields: Any) -> None:
        """Begin an attempt as the program ``attempt`` does."""
        folder = self.state / "runs" / run
        folder.mkdir(exist_ok=True)
        start = Start(run, number, 0, "pod-w0", time.time())
        attempt = Attempt(start, self.location, self.emulator, streams_at_end(folder))
        write_attempt(folder, attempt._replace(**fields))

    def write(self, text: str, name: str = "log", run: str = "mine") -> None:
        with (self.state / "runs" / run / name).open("a") as file:
            file.write(text)

    def end(self, number: int) -> None:
        """End an attempt as the program ``attempt_end`` does."""
        environ = {"TPUFLEET_RUN_DIR": str(self.folder), "TPUFLEET_ATTEMPT": str(number)}
        systemd = {"SERVICE_RESULT": "success", "EXIT_CODE": "exited", "EXIT_STATUS": "75"}
        subprocess.run([PROGRAMS / "attempt_end", "mine"], env=environ | systemd, check=True)

    def stored(self, number: int = 1, name: str = "log") -> str:
        """Return an attempt's stored ``log`` or ``metrics``, or an object such as ``exit.json``."""
        bucket = Bucket(f"{self.location}/{number}/0", address=self.emulator)
        names = [
            object_name for object_name in bucket.names() if object_name.partition("/")[0] == name
        ]
        return b"".join(map(bucket.content, names)).decode()


@pytest.fixture
def worker(tmp_path: Path, emulator: str) -> Worker:
    return Worker(tmp_path, emulator)


def test_an_attempt_is_stored_while_it_runs_and_when_it_has_ended(worker):
    worker.write("of an earlier attempt\n")
    worker.begin(1)
    worker.write("one\n")
    worker.write('{"step": 1}\n', "metrics.jsonl")
    worker.outputs.store()
    assert worker.stored() == "one\n"

    worker.write("two\nlast words")
    worker.end(1)
    worker.outputs.store()

    assert worker.stored() == "one\ntwo\nlast words"
    assert worker.stored(name="metrics") == '{"step": 1}\n'
    start, ended = (json.loads(worker.stored(name=name)) for name in ("start.json", "exit.json"))
    assert (start["run"], start["attempt"], start["worker"]) == ("mine", 1, "pod-w0")
    assert (ended["attempt"], ended["status"]) == (1, "75")
    assert not list((worker.folder / "output").iterdir())


def test_the_output_of_a_lost_attempt_is_stored_after_a_reboot_and_after_the_next_launch(worker):
    worker.begin(1)
    worker.write("one\n")
    worker.outputs.store()
    worker.write("written before the power cut")
    worker.begin(2)
    worker.write("\nof the second\n")

    store_outputs.Outputs(worker.state / "runs").store()

    assert worker.stored(2) == "\nof the second\n"
    assert worker.stored() == "one\nwritten before the power cut"


def test_an_unreachable_bucket_is_reported_once_and_gets_all_output_later(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(store_outputs, "EVERY_SECONDS", 0)
    port = free_port()
    worker = Worker(tmp_path, f"http://127.0.0.1:{port}")
    worker.begin(1)
    worker.write(LONG_LOG)

    for _ in range(2):
        worker.outputs.store()
    with emulated_storage(port):
        worker.outputs.store()
        assert worker.stored() == LONG_LOG

    assert [line.partition(" (")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"gs://{BUCKET}: output not stored",
        f"gs://{BUCKET}: output is stored again",
    ]


def test_runs_that_cannot_be_stored_are_reported_and_do_not_delay_another(worker, capsys):
    worker.begin(1, "also", location=worker.location.replace("mine", "also"))
    (worker.state / "runs/also/output/1.state.json").mkdir()
    worker.begin(1, "away", location="gs://no-such-bucket/runs/away")
    worker.write("nowhere\n", run="away")
    worker.begin(1)
    worker.write("one\n")

    worker.outputs.store()

    assert worker.stored() == "one\n"
    errors = capsys.readouterr().err
    assert "also: output not stored (Is a directory). It stays on" in errors
    assert "gs://no-such-bucket: output not stored (HTTP 404" in errors


def test_a_run_that_had_nothing_to_store_is_stored_again_after_its_next_launch(worker):
    worker.begin(1)
    worker.end(1)
    for _ in range(2):
        worker.outputs.store()
    assert list(worker.outputs.idle_runs) == ["mine"]

    worker.begin(2)
    worker.write("of the second\n")
    worker.outputs.store()

    assert worker.stored(2) == "of the second\n"


def test_an_attempt_stays_until_every_earlier_one_is_stored(worker):
    """The file of attempt 2 has the position in the log at which attempt 1 ends."""
    worker.begin(1, location="gs://no-such-bucket/runs/mine")
    worker.write("of the first\n")
    worker.begin(2)
    worker.write("of the second\n")
    worker.end(2)

    worker.outputs.store()

    assert worker.stored(2) == "of the second\n"
    assert (worker.folder / "output/2.json").exists()
    assert not worker.outputs.idle_runs


def test_the_output_of_an_attempt_without_a_bucket_is_not_stored(worker, capsys):
    worker.begin(1, location="")
    worker.write("one\n")

    worker.outputs.store()

    assert capsys.readouterr().err == ""


def test_a_run_whose_objects_are_refused_does_not_delay_another_in_the_same_bucket(
    tmp_path, scripted
):
    def respond(request: Request) -> Reply:
        return error(403, "refused") if "/also/" in unquote(request.query) else Reply()

    scripted.handler = respond
    worker = Worker(tmp_path, scripted.endpoint)
    for run in ("also", "mine"):
        worker.begin(1, run, location=worker.location.replace("mine", run))
        worker.write("one\n", run=run)

    worker.outputs.store()

    assert any("/mine/1/0/log/" in unquote(request.query) for request in scripted.asked)


@pytest.mark.parametrize("moment", ["read_state", "write_object"])
def test_an_attempt_that_begins_during_the_uploads_keeps_its_lines(worker, monkeypatch, moment):
    original = getattr(store_outputs, moment)

    def begin_meanwhile(*arguments: Any) -> Any:
        if not (worker.folder / "output/2.json").exists():
            worker.begin(2)
            worker.write("of the second\n")
        return original(*arguments)

    monkeypatch.setattr(store_outputs, moment, begin_meanwhile)
    worker.begin(1)
    worker.write(LONG_LOG)

    for _ in range(2):
        worker.outputs.store()

    assert worker.stored(1) == LONG_LOG
    assert worker.stored(2) == "of the second\n"


def test_the_program_of_the_unit_records_where_the_output_begins(tmp_path, worker):
    worker.write("of an earlier attempt\n")
    spec = launch_spec(outputs=worker.location, attempt=1, workers=1, placement=["pod-w0"],
                       command=[sys.executable, "-c", "print('from the trainer')"])  # fmt: skip
    command, environ = unit_program(tmp_path, spec)
    environ["TPUFLEET_RUN_DIR"] = str(worker.folder)

    subprocess.run(command, env=environ | {"STORAGE_EMULATOR_HOST": worker.emulator}, check=True)
    worker.end(1)
    worker.outputs.store()

    assert worker.stored(name="exit.json") != ""
    header, line = worker.stored().splitlines()
    assert header.endswith("attempt 1")
    assert line == "from the trainer"


@pytest.fixture
def service(worker: Worker) -> Iterator[subprocess.Popen[str]]:
    """The service on the worker, as a process that has begun to store attempt 1.

    It is started through the link ``programs``, which setup replaces when its files change.
    """
    shutil.copytree(PROGRAMS, worker.state / "old")
    (worker.state / "programs").symlink_to("old")
    worker.begin(1)
    # Use -I, as the shebang line of the program does.
    command = [sys.executable, "-I", worker.state / "programs/store_outputs"]
    environ = {"PATH": os.environ["PATH"], "TPUFLEET_STATE": str(worker.state)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: worker.stored(name="start.json") != "")
            yield process
        finally:
            process.kill()


def test_the_service_that_stores_output_uploads_new_output_before_it_ends(worker, service):
    worker.write("at the shutdown\n")
    service.terminate()

    assert service.communicate(timeout=60)[1] == ""
    assert worker.stored() == "at the shutdown\n"


def test_the_service_that_stores_output_exits_when_setup_has_replaced_its_files(worker, service):
    (worker.state / "old").rename(worker.state / "new")
    link = worker.state / "programs"
    link.unlink()
    link.symlink_to("new")

    assert service.wait(timeout=60) == 0


def test_the_service_that_stores_output_continues_after_a_suspension(worker, service):
    service.send_signal(signal.SIGSTOP)
    time.sleep(6)  # longer than the interval at which the service stores output
    worker.write("one\n")
    service.send_signal(signal.SIGCONT)

    wait_for(lambda: worker.stored() == "one\n")
    assert service.poll() is None
