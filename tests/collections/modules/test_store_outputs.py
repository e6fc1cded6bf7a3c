"""The service that stores the output of runs, run as a process with an emulated bucket."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.module_utils.worker.output_stream import (
    Attempt,
    Start,
    streams_at_end,
    write_attempt,
)

from harness.emulated_storage import BUCKET, emulated_storage
from harness.playbooks import ROOT
from harness.unit_program import unit_program
from harness.valid_record import launch_spec
from tests.collections.modules.test_launchers import free_port, wait_for

FILES = ROOT / "roles/run/files"
LONG_LOG = "".join(f"line {number} {'.' * 100}\n" for number in range(5000))
"""A log of several segments."""


class Worker:
    """A worker with the run ``mine`` and the service that stores its output."""

    def __init__(self, state: Path, emulator: str, bucket: str) -> None:
        self.state, self.folder, self.emulator = state, state / "runs/mine", emulator
        self.location = f"gs://{bucket}/{state.name}/mine"
        self.folder.mkdir(parents=True)
        self.program = FILES / "store_outputs"
        self.process: subprocess.Popen[str] | None = None

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
        subprocess.run([FILES / "attempt_end", "mine"], env=environ | systemd, check=True)

    def start(self) -> None:
        environ = {"PATH": os.environ["PATH"], "TPUFLEET_STATE": str(self.state)}
        command = [sys.executable, "-I", self.program]  # with -I, as in the program's shebang
        self.process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)

    def stop(self) -> str:
        """End the service as systemd does; return what it reported."""
        self.process.terminate()
        return self.process.communicate(timeout=60)[1]

    def stored(self, number: int = 1, name: str = "log") -> str:
        """Return an attempt's stored stream (``log``, ``metrics``) or other object of this name."""
        bucket = Bucket(f"{self.location}/{number}/0", address=self.emulator)
        names = [
            object_name for object_name in bucket.names() if object_name.partition("/")[0] == name
        ]
        return b"".join(map(bucket.content, names)).decode()


@pytest.fixture
def worker(tmp_path: Path, emulator: str) -> Iterator[Worker]:
    machine = Worker(tmp_path, emulator, BUCKET)
    yield machine
    if machine.process and machine.process.poll() is None:
        machine.process.send_signal(signal.SIGKILL)
        machine.process.wait()


def test_an_attempt_is_stored_while_it_runs_and_when_it_has_ended(worker):
    worker.write("of an earlier attempt\n")
    worker.begin(1)
    worker.start()
    worker.write("one\n")
    worker.write('{"step": 1}\n', "metrics.jsonl")
    wait_for(lambda: worker.stored() == "one\n")

    worker.write("two\nlast words")
    worker.end(1)
    wait_for(lambda: worker.stored(name="exit.json") != "")

    assert worker.stored() == "one\ntwo\nlast words"
    assert worker.stored(name="metrics") == '{"step": 1}\n'
    start, ended = (json.loads(worker.stored(name=name)) for name in ("start.json", "exit.json"))
    assert (start["run"], start["attempt"], start["worker"]) == ("mine", 1, "pod-w0")
    assert (ended["attempt"], ended["status"]) == (1, "75")
    wait_for(lambda: not list((worker.folder / "output").iterdir()))


def test_the_output_of_a_lost_attempt_is_stored_after_a_reboot_and_after_the_next_launch(worker):
    worker.begin(1)
    worker.write("one\n")
    worker.start()
    wait_for(lambda: worker.stored() == "one\n")
    worker.process.kill()
    worker.process.wait()
    worker.write("written before the power cut")
    worker.begin(2)
    worker.write("\nof the second\n")

    worker.start()

    wait_for(lambda: worker.stored(2) == "\nof the second\n")
    assert worker.stored() == "one\nwritten before the power cut"


def test_the_service_stores_new_output_before_it_ends(worker):
    worker.begin(1)
    worker.start()
    wait_for(lambda: worker.stored(name="start.json") != "")

    worker.write("at the shutdown\n")
    errors = worker.stop()

    assert worker.stored() == "at the shutdown\n"
    assert errors == ""


def test_the_service_exits_for_a_restart_when_setup_has_replaced_its_files(worker):
    for release in ("old", "new"):
        shutil.copytree(FILES, worker.state / release)
    link = worker.state / "programs"
    link.symlink_to("old")
    worker.program = link / "store_outputs"
    worker.begin(1)
    worker.start()
    wait_for(lambda: worker.stored(name="start.json") != "")

    link.unlink()
    link.symlink_to("new")

    assert worker.process.wait(timeout=60) == 0


def test_the_service_continues_after_its_machine_was_suspended(worker):
    worker.begin(1)
    worker.start()
    wait_for(lambda: worker.stored(name="start.json") != "")
    worker.process.send_signal(signal.SIGSTOP)
    time.sleep(6)  # longer than the interval at which the service stores output
    worker.write("one\n")
    worker.process.send_signal(signal.SIGCONT)

    wait_for(lambda: worker.stored() == "one\n")
    assert worker.process.poll() is None


def test_an_unreachable_bucket_is_reported_once_and_gets_all_output_later(tmp_path):
    port = free_port()
    worker = Worker(tmp_path, f"http://127.0.0.1:{port}", BUCKET)
    worker.begin(1)
    worker.write(LONG_LOG)
    worker.start()
    try:
        time.sleep(12)  # long enough for two uploads to fail
        with emulated_storage(port):
            wait_for(lambda: worker.stored() == LONG_LOG)
            errors = worker.stop()
    finally:
        worker.process.kill()
    assert [line.partition(" (")[0] for line in errors.splitlines()] == [
        f"gs://{BUCKET}: output not stored",
        f"gs://{BUCKET}: output is stored again",
    ]


def test_runs_that_cannot_be_stored_are_reported_and_do_not_delay_another(worker):
    worker.begin(1, "also", location=worker.location.replace("mine", "also"))
    (worker.state / "runs/also/output/1.state.json").mkdir()
    worker.begin(1, "away", location="gs://no-such-bucket/runs/away")
    worker.write("nowhere\n", run="away")
    worker.begin(1)
    worker.write("one\n")

    worker.start()

    wait_for(lambda: worker.stored() == "one\n")
    errors = worker.stop()
    assert "also: output not stored (Is a directory). It stays on" in errors
    assert "gs://no-such-bucket: output not stored (HTTP 404" in errors


def test_an_attempt_that_begins_during_the_uploads_keeps_its_lines(worker):
    objects: dict[str, bytes] = {}

    class Storage(BaseHTTPRequestHandler):
        """A fake bucket; attempt 2 begins when it receives the first segment of attempt 1."""

        def do_POST(self) -> None:
            name = parse_qs(urlsplit(self.path).query)["name"][0].partition("/mine/")[2]
            if name == "1/0/log/000000000000" and name not in objects:
                worker.begin(2)
                worker.write("of the second\n")
            objects[name] = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep the test's output empty."""

    def stored(start: str) -> str:
        return b"".join(
            objects[name] for name in sorted(objects) if name.startswith(start)
        ).decode()

    with ThreadingHTTPServer(("127.0.0.1", 0), Storage) as server:
        Thread(target=server.serve_forever).start()
        try:
            worker.emulator = f"http://127.0.0.1:{server.server_port}"
            worker.begin(1)
            worker.write(LONG_LOG)
            worker.start()
            wait_for(lambda: "2/0/log/000000000000" in objects)
        finally:
            server.shutdown()

    assert stored("1/0/log/") == LONG_LOG
    assert stored("2/0/log/") == "of the second\n"


def test_the_program_of_the_unit_records_where_the_output_begins(tmp_path, worker):
    worker.write("of an earlier attempt\n")
    spec = launch_spec(outputs=worker.location, attempt=1, workers=1, placement=["pod-w0"],
                       command=[sys.executable, "-c", "print('from the trainer')"])  # fmt: skip
    command, environ = unit_program(tmp_path, spec)
    environ["TPUFLEET_RUN_DIR"] = str(worker.folder)

    subprocess.run(command, env=environ | {"STORAGE_EMULATOR_HOST": worker.emulator}, check=True)
    worker.end(1)
    worker.start()

    wait_for(lambda: worker.stored(name="exit.json") != "")
    header, line = worker.stored().splitlines()
    assert header.endswith("attempt 1")
    assert line == "from the trainer"


def test_a_run_whose_objects_are_refused_does_not_delay_another_in_the_same_bucket(worker):
    stored = set()

    class Storage(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            name = parse_qs(urlsplit(self.path).query)["name"][0]
            self.rfile.read(int(self.headers["Content-Length"]))
            is_refused = "/also/" in name
            stored.update(() if is_refused else {name})
            self.send_response(403 if is_refused else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Storage) as server:
        Thread(target=server.serve_forever).start()
        worker.emulator = f"http://127.0.0.1:{server.server_port}"
        worker.begin(1, "also", location=worker.location.replace("mine", "also"))
        worker.write("refused\n", run="also")
        worker.begin(1)
        worker.write("one\n")
        worker.start()
        try:
            wait_for(lambda: any("/log/" in name for name in stored))
        finally:
            server.shutdown()
            worker.stop()
