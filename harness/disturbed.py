"""A run on a local cloud, into which tests inject faults, and the losses that the run logs."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import requests

from harness.fleet import Fleet
from localcloud import client
from localcloud.local_cloud import PROJECT_ROOT

BUCKET = "gs://local-fleet"
TPU = "demo"
PAUSE_S = 10.0
"""Seconds that ``watch_until`` waits between two passes of the watch."""


class Losses:
    """All losses that the leader of a run has ever logged, even if its machine was replaced.

    ``by_step`` maps each step to its loss, ``finished_at`` to the time when it last ended.
    ``repeated`` is the total number of repeated steps, and ``differing`` lists the steps that gave
    another loss when they were repeated. ``machines`` is the local cloud's directory of machines.
    """

    def __init__(self, machines: Path, run: str) -> None:
        self.by_step: dict[int, float] = {}
        self.differing: list[int] = []
        self.finished_at: dict[int, float] = {}
        self.repeated = 0
        self._pattern = f"*-w-0/root/var/lib/tpufleet/runs/{run}/metrics.jsonl"
        self._machines = machines
        self._positions: dict[tuple[Path, int], tuple[int, bytes]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._collect, daemon=True)

    @property
    def best(self) -> int:
        """The highest step with a loss; 0 if there is none."""
        return max(self.by_step, default=0)

    @contextmanager
    def collected(self) -> Iterator["Losses"]:
        """Collect losses in the background during the ``with`` block."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()

    def _collect(self) -> None:
        while not self._stop.wait(0.2):
            for file in self._machines.glob(self._pattern):
                try:
                    self._read_file(file)
                except OSError:
                    continue  # the worker's machine is being deleted, with its files

    def _read_file(self, file: Path) -> None:
        with file.open("rb") as stream:
            inode = os.fstat(stream.fileno()).st_ino
            offset, last = self._positions.get((file, inode), (0, b""))
            # When a trainer resumes, it removes the lines of the steps that it will repeat. If the
            # line that was read last is no longer there, read the whole file again.
            stream.seek(offset - len(last))
            if stream.read(len(last)) != last:
                offset = stream.seek(0)
            complete_lines, newline, _ = stream.read().rpartition(b"\n")
        if not newline:
            return
        for line in complete_lines.splitlines():
            entry = json.loads(line)
            step, loss = entry["step"], entry["loss"]
            if self.finished_at.get(step, entry["time"]) != entry["time"]:
                self.repeated += 1
            self.finished_at[step] = entry["time"]
            if self.by_step.setdefault(step, loss) != loss:
                self.differing.append(step)
        last = complete_lines.rpartition(b"\n")[2] + newline
        self._positions[file, inode] = offset + len(complete_lines) + len(newline), last


@dataclass
class DisturbedRun:
    """A run on a fleet, with methods that disturb or observe it.

    Args:
        fleet: the fleet.
        run: the run's name.
        losses: the losses of the run, collected in the background.
        log: the watch's log file.
        fleet_state: where the run record is.
        passes: the terminal output of each pass of the watch so far.
    """

    fleet: Fleet
    run: str
    losses: Losses
    log: Path
    fleet_state: str = f"{BUCKET}/fleet"
    passes: list[str] = field(default_factory=list)

    def fault(self, *arguments: str) -> None:
        """Inject a fault into the cloud: python -m localcloud fault with these arguments."""
        self._localcloud("fault", *arguments)

    def bucket(self, verb: str) -> None:
        """Run ``localcloud bucket`` with a verb such as stop or start."""
        self._localcloud("bucket", verb)

    def signal_trainer(self, number: str, *workers: str) -> None:
        """Send a signal to all processes of the run's unit on the named workers, at the same time.

        ``number`` is the signal's name, such as KILL. With several workers, it is no error if a
        unit has ended before it gets the signal: when the signal has ended the trainer of one
        worker, the others end, too.
        """
        unit = f"tpufleet-run@{self.run}.service"
        kill = ["systemctl", "kill", f"--signal={number}", unit]
        if len(workers) > 1:
            kill = ["sh", "-c", f"{' '.join(kill)} || ! systemctl is-active --quiet {unit}"]
        self.fleet.on(":".join(workers), *kill)

    def preempt(self, warning_s: float = 0) -> None:
        """Preempt the run's TPU, ``warning_s`` seconds after the workers were warned."""
        body = {"warningSeconds": warning_s} if warning_s else {}
        node = f"/_localcloud/locations/{self.zone()}/nodes/{TPU}"
        client.request(self.fleet.cloud, "POST", f"{node}:preempt", body)

    def zone(self) -> str:
        """Return the zone of the run's TPU, as recorded at its last launch."""
        return str(self.record()["nodes"][0]["zone"])

    def workers(self) -> list[str]:
        """Return the inventory's workers."""
        return self.fleet.groups().get("tpu", [])

    def attempt(self) -> int:
        """Return the number of the attempt in the run record."""
        return int(self.record().get("attempt", 0))

    def record(self) -> dict:
        """Return the run record, which is in the bucket."""
        from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import (
            record_store,
        )

        endpoint = self.fleet.cloud.bucket_endpoint.read_text().strip()
        api = {"project": "local-fleet", "endpoint": "http://127.0.0.1", "zones": ["-"]}
        return record_store(self.fleet_state, api | {"storage_endpoint": endpoint}).read(self.run)

    def watch_log(self, offset: int = 0) -> str:
        """Return the watch's log from the character ``offset`` on."""
        return self.log.read_text()[offset:] if self.log.exists() else ""

    def can_write(self, worker: str) -> bool:
        """Return whether a worker's disk has space for a file of a megabyte."""
        write = ("dd", "if=/dev/zero", "of=/var/tmp/chaos", "bs=1M", "count=1")
        try:
            self.fleet.on(worker, *write)
        except AssertionError:
            return False
        return True

    def objects(self, prefix: str, timeout_s: float = 30) -> list[dict[str, str]]:
        """Return the JSON of the objects in the bucket whose names begin with ``prefix``."""
        response = requests.get(self._objects_url(), params={"prefix": prefix}, timeout=timeout_s)
        response.raise_for_status()
        return response.json().get("items", [])

    def read_object(self, name: str) -> bytes:
        """Return the content of an object in the bucket."""
        response = requests.get(self._objects_url(name), params={"alt": "media"}, timeout=30)
        response.raise_for_status()
        return response.content

    def put_object(self, name: str, content: bytes) -> None:
        """Write an object into the bucket."""
        params = {"uploadType": "media", "name": name}
        upload = self._objects_url().replace("/storage/", "/upload/storage/", 1)
        requests.post(upload, params=params, data=content, timeout=30).raise_for_status()

    def delete_object(self, name: str) -> None:
        """Delete an object from the bucket."""
        requests.delete(self._objects_url(name), timeout=30).raise_for_status()

    def _objects_url(self, name: str = "") -> str:
        """Return the URL of an object in the bucket, or of all if ``name`` is empty."""
        endpoint = self.fleet.cloud.bucket_endpoint.read_text().strip()
        collection_url = f"{endpoint}/storage/v1/b/{BUCKET.removeprefix('gs://')}/o"
        return f"{collection_url}/{quote(name, safe='')}" if name else collection_url

    def watch(self, *arguments: str) -> int:
        """Run one pass of the watch, as its timer does, and return its exit code.

        ``arguments`` are further arguments of ansible-playbook.
        """
        played = self.fleet.play("playbooks/watch.yml", *arguments, limit_s=1800)
        self.passes.append(played.output)
        return played.code

    def begin(self, playbook: str = "playbooks/watch.yml", *arguments: str) -> subprocess.Popen:
        """Start a playbook in the background, as another controller would."""
        return subprocess.Popen(
            ["ansible-playbook", playbook, *arguments],
            cwd=PROJECT_ROOT,
            env=self.fleet.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def watch_until(self, is_true: Callable[[], bool], seconds: float) -> None:
        """Run passes of the watch until a condition is true.

        Raises AssertionError after ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while not is_true():
            if time.monotonic() > deadline:
                last = self.passes[-1][-3000:] if self.passes else "(no pass)"
                log = self.watch_log()[-3000:]
                raise AssertionError(
                    f"the condition was not true within {seconds:.0f} s. The watch's log:\n{log}\n"
                    f"The output of the last pass:\n{last}"
                )
            self.watch()
            self.wait(is_true, PAUSE_S)

    @staticmethod
    def wait(is_true: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition is true or the time is up; return whether it is true."""
        deadline = time.monotonic() + seconds
        while not (result := is_true()) and time.monotonic() < deadline:
            time.sleep(0.3)
        return result

    def _localcloud(self, *arguments: str) -> None:
        result = subprocess.run(
            [sys.executable, "-m", "localcloud", "--name", self.fleet.cloud.name, *arguments],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
