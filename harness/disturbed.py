"""A run that is disturbed, looked at from outside: its losses, its record's attempt, the watch."""

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
from localcloud.place import PROJECT_ROOT

BUCKET = "gs://local-fleet"
TPU = "demo"
WATCH_EVERY_S = 5.0


class Losses:
    """All losses that the leader of a run has ever written, collected while machines come and go.

    ``differing`` names the steps that were done twice with two losses.
    """

    def __init__(self, machines: Path, run: str) -> None:
        self.by_step: dict[int, float] = {}
        self.differing: list[int] = []
        self.finished_at: dict[int, float] = {}
        self.done_twice = 0
        self._pattern = f"*-w-0/root/var/lib/tpufleet/runs/{run}/metrics.jsonl"
        self._machines = machines
        self._read: dict[tuple[Path, int], tuple[int, bytes]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._collect, daemon=True)

    @property
    def best(self) -> int:
        """The furthest step."""
        return max(self.by_step, default=0)

    @contextmanager
    def collected(self) -> Iterator["Losses"]:
        """Collect while this lasts."""
        self._thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._thread.join()

    def _collect(self) -> None:
        while not self._over.wait(0.2):
            for file in self._machines.glob(self._pattern):
                try:
                    self._take(file)
                except OSError:
                    continue  # the machine is just going

    def _take(self, file: Path) -> None:
        with file.open("rb") as stream:
            inode = os.fstat(stream.fileno()).st_ino
            begin, last = self._read.get((file, inode), (0, b""))
            # A trainer that goes on takes away what it will do again: then all is read anew.
            stream.seek(begin - len(last))
            if stream.read(len(last)) != last:
                begin = stream.seek(0)
            whole, newline, _ = stream.read().rpartition(b"\n")
        if not newline:
            return
        for line in whole.splitlines():
            told = json.loads(line)
            step, loss = told["step"], told["loss"]
            if self.finished_at.get(step, told["time"]) != told["time"]:
                self.done_twice += 1
            self.finished_at[step] = told["time"]
            if self.by_step.setdefault(step, loss) != loss:
                self.differing.append(step)
        last = whole.rpartition(b"\n")[2] + newline
        self._read[file, inode] = begin + len(whole) + len(newline), last


@dataclass
class Disturbed:
    """A run on a fleet, and all that can be done to it and seen of it."""

    fleet: Fleet
    run: str
    losses: Losses
    log: Path
    fleet_state: str = f"{BUCKET}/fleet"
    passes: list[str] = field(default_factory=list)

    def fault(self, *words: str) -> None:
        """Let the cloud get something wrong (python -m localcloud fault …)."""
        self._localcloud("fault", *words)

    def bucket(self, verb: str) -> None:
        """Stop or start the bucket."""
        self._localcloud("bucket", verb)

    def signal_trainer(self, number: str, *workers: str) -> None:
        """Send a signal to all processes of the run's unit on workers, on all of them at once.

        Trainers end together, so of several the last may have gone before it is its turn.
        """
        unit = f"tpufleet-run@{self.run}.service"
        kill = ["systemctl", "kill", f"--signal={number}", unit]
        if len(workers) > 1:
            kill = ["sh", "-c", f"{' '.join(kill)} || ! systemctl is-active --quiet {unit}"]
        self.fleet.on(":".join(workers), *kill)

    def preempt(self, warning_s: float = 0) -> None:
        """Let the cloud take the TPU away."""
        body = {"warningSeconds": warning_s} if warning_s else {}
        client.ask(self.fleet.place, "POST", f"/_localcloud/nodes/{TPU}:preempt", body)

    def workers(self) -> list[str]:
        """Name the machines' hosts."""
        return self.fleet.groups().get("tpu", [])

    def attempt(self) -> int:
        """Read the attempt of the record."""
        return int(self.record().get("attempt", 0))

    def record(self) -> dict:
        """Read the record out of the bucket."""
        from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_stores import (
            record_store,
        )

        endpoint = self.fleet.place.bucket_endpoint.read_text().strip()
        api = {"project": "local-fleet", "endpoint": "http://127.0.0.1", "zones": ["-"]}
        return record_store(self.fleet_state, api | {"storage_endpoint": endpoint}).read(self.run)

    def said(self, since: int = 0) -> str:
        """Read what the watch has written, from a place on."""
        return self.log.read_text()[since:] if self.log.exists() else ""

    def can_write(self, worker: str) -> bool:
        """Return whether a worker can write a file of a megabyte."""
        write = ("dd", "if=/dev/zero", "of=/var/tmp/chaos", "bs=1M", "count=1")
        try:
            self.fleet.on(worker, *write)
        except AssertionError:
            return False
        return True

    def put_object(self, name: str, content: str) -> None:
        """Write an object into the bucket, as anybody who may write there."""
        endpoint, bucket = self._bucket()
        upload = f"{endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        requests.post(upload, data=content.encode(), timeout=30).raise_for_status()

    def delete_object(self, name: str) -> None:
        """Delete an object of the bucket."""
        endpoint, bucket = self._bucket()
        place = f"{endpoint}/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        requests.delete(place, timeout=30).raise_for_status()

    def _bucket(self) -> tuple[str, str]:
        endpoint = self.fleet.place.bucket_endpoint.read_text().strip()
        return endpoint, BUCKET.removeprefix("gs://")

    def watch(self, *words: str) -> int:
        """Pass once, as the timer does; what fails is for the next pass."""
        played = self.fleet.play("playbooks/watch.yml", *words, limit_s=1800)
        self.passes.append(played.said)
        return played.code

    def begin_watch(self) -> subprocess.Popen:
        """Begin a pass as another controller would."""
        return self.begin("playbooks/watch.yml")

    def begin(self, *words: str) -> subprocess.Popen:
        """Begin a playbook."""
        return subprocess.Popen(
            ["ansible-playbook", *words],
            cwd=PROJECT_ROOT,
            env=self.fleet.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def watch_until(self, come: Callable[[], bool], seconds: float) -> None:
        """Pass again and again until it has come."""
        deadline = time.monotonic() + seconds
        while not come():
            if time.monotonic() > deadline:
                last = self.passes[-1][-3000:] if self.passes else "no pass"
                raise AssertionError(f"not within {seconds:.0f} s:\n{self.said()[-3000:]}\n{last}")
            self.watch()
            self.wait(come, WATCH_EVERY_S)

    @staticmethod
    def wait(come: Callable[[], bool], seconds: float) -> bool:
        """Look until it has come or the time is up."""
        deadline = time.monotonic() + seconds
        while not (there := come()) and time.monotonic() < deadline:
            time.sleep(0.3)
        return there

    def _localcloud(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "localcloud", "--name", self.fleet.place.name, *words],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
