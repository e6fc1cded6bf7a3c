"""Measure the time from a relaunch to its first new step, with a warm compile cache.

    .venv/bin/python -m bench.relaunch [--rounds 5]

One process on this CPU trains train/configs/shakespeare.yml, gets SIGTERM, saves, and is started
again, as on a fleet. The run has one process, because on CPUs only process 0 can use JAX's cache.
The time counts from the start of the process to the first new line of metrics. The first launch,
which compiles, is printed too. Exits with 1 if the target is missed.
"""

import argparse
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from harness.trainer_processes import PROJECT, Attempt, read_metrics

TARGET_SECONDS = 5.0
OVERRIDES = ["steps=1000000", "sample.length=0", "checkpoint.every=1000000"]


def first_step(directory: Path, config: Path) -> float:
    """Start the trainer, wait for its first new step, stop it; return the seconds to the step."""
    lines = len(read_metrics(directory / "w0"))
    begun = time.monotonic()
    attempt = Attempt(directory, config, {0: OVERRIDES}, directory / "compiled", processes=1)
    try:
        attempt.wait_for(lambda: len(read_metrics(directory / "w0")) > lines)
        seconds = time.monotonic() - begun
        attempt.signal(0, signal.SIGTERM)
        codes = attempt.codes()
    finally:
        attempt.kill()
    if codes != [75]:
        raise SystemExit(
            f"relaunch: expected exit code 75 (saved) after SIGTERM, but the trainer exited with "
            f"{codes[0]}. See its log:\n{attempt.logs()}"
        )
    return seconds


def main() -> int:
    """Measure the first launch and the relaunches; return 1 if the target is missed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="number of relaunches (default: 5)")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="tpufleet-bench-") as directory:
        config = PROJECT / "train" / "configs" / "shakespeare.yml"
        cold = first_step(Path(directory), config)
        warm = [first_step(Path(directory), config) for _ in range(rounds)]
    median = statistics.median(warm)
    print(f"first launch, nothing compiled   {cold:.2f} s")
    print(f"relaunch, compile cache warm     {median:.2f} s   ({min(warm):.2f} to {max(warm):.2f})")
    print(f"target {TARGET_SECONDS:g} s: {'reached' if median <= TARGET_SECONDS else 'missed'}")
    return 0 if median <= TARGET_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
