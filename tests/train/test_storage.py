"""train.storage: directories of concurrent and killed processes, and a bucket that stalls."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from train import storage
from train.data.files import read_bytes
from train.storage import new_directory

KILLED = """
import os, signal, sys
from pathlib import Path
from train.storage import new_directory
with new_directory(Path(sys.argv[1])) as new:
    (new / "file").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def make_old(folder: Path) -> None:
    for path in folder.iterdir():
        os.utime(path, (time.time() - 3600,) * 2)


def test_the_directory_of_the_process_that_finishes_first_stays(tmp_path):
    directory = tmp_path / "corpus"
    with new_directory(directory) as second:
        (second / "file").write_text("second")
        with new_directory(directory) as first:
            (first / "file").write_text("first")

    assert (directory / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_a_directory_that_cannot_be_renamed_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError), new_directory(tmp_path / "corpus") as new:
        new.rmdir()


@pytest.mark.parametrize(("host", "remaining"), [(None, []), ("other-w0", [".partial-other-w0-x"])])
def test_the_remains_of_a_killed_process_of_this_host_are_removed(
    tmp_path: Path, host: str | None, remaining: list[str]
):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "corpus")], check=False)
    [partial] = tmp_path.iterdir()
    if host:
        partial.rename(tmp_path / f".partial-{host}-x")
    make_old(tmp_path)
    with new_directory(tmp_path / "corpus"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [*remaining, "corpus"]


def test_the_directory_of_a_running_process_stays(tmp_path: Path):
    with new_directory(tmp_path / "first") as first:
        make_old(tmp_path)
        with new_directory(tmp_path / "second"):
            assert first.parent.name.startswith(f".partial-{socket.gethostname()}-")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_a_directory_that_its_process_is_about_to_lock_is_not_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = tmp_path / f".partial-{socket.gethostname()}-x"
    other.mkdir()
    locked, lock = [], storage._locked
    monkeypatch.setattr(storage, "_locked", lambda path: locked.append(path) or lock(path))
    with new_directory(tmp_path / "corpus") as new:
        assert locked == [new.parent]
    assert other.exists()


FAILING = """
import atexit, logging, threading, time
from train.storage import logged_errors

def fail(seconds):
    with logged_errors("upload"):
        time.sleep(seconds)
        raise OSError("closed")

logging.basicConfig(format="%(message)s")
fail(0)
threading.Thread(target=fail, args=[0.3], daemon=True).start()
atexit.register(time.sleep, 1)
"""


def test_an_error_is_logged_unless_the_process_is_exiting():
    command = [sys.executable, "-c", FAILING]
    failing = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
    assert failing.stderr == "upload: OSError: closed\n"


class StallingBucket(BaseHTTPRequestHandler):
    """A bucket whose first download sends nothing after the headers."""

    downloads = 0
    ended = threading.Event()

    def do_GET(self):
        StallingBucket.downloads += 1
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        if StallingBucket.downloads == 1:
            self.ended.wait()
        self.wfile.write(b"text")


def test_a_download_that_stalls_is_tried_again(monkeypatch):
    monkeypatch.setattr(storage, "STALL_SECONDS", 0.2)
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "any")
    with ThreadingHTTPServer(("127.0.0.1", 0), StallingBucket) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)

        with ThreadPoolExecutor() as pool:
            content = pool.submit(read_bytes, "gs://stalling/name")
            try:
                assert content.result(60) == b"text"
            finally:
                StallingBucket.ended.set()
                server.shutdown()
