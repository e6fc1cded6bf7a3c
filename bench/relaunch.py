"""Measure a relaunch up to its first new step, with the compile cache of the previous attempt.

    .venv/bin/python -m bench.relaunch [--rounds 5]

Two processes on this CPU train train/configs/shakespeare.yml, get SIGTERM, save, and are started
again, like on a fleet. The time counts from the start of the processes to the first new line of
metrics. The first launch, which compiles, is printed too. Exits with 1 if the bar is missed.
"""

import argparse
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from harness.trainer_processes import PROJECT, Attempt, Compiled, read_metrics

BAR_SECONDS = 5.0
WORDS = ["steps=1000000", "sample.length=0", "checkpoint.every=1000000"]


def first_step(directory: Path, config: Path) -> float:
    """Start, wait for the first new step, stop; return the seconds to the step."""
    lines = len(read_metrics(directory / "w0"))
    begun = time.monotonic()
    attempt = Attempt(directory, config, {0: WORDS, 1: WORDS}, Compiled(directory / "compiled"))
    try:
        attempt.wait_for(lambda: len(read_metrics(directory / "w0")) > lines)
        seconds = time.monotonic() - begun
        attempt.signal(0, signal.SIGTERM)
        codes = attempt.codes()
    finally:
        attempt.kill()
    if codes != [75, 75]:
        raise SystemExit(f"relaunch: the processes ended with {codes}:\n{attempt.logs()}")
    return seconds


def main() -> int:
    """Measure and compare with the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="tpufleet-bench-") as directory:
        config = PROJECT / "train" / "configs" / "shakespeare.yml"
        cold = first_step(Path(directory), config)
        warm = [first_step(Path(directory), config) for _ in range(rounds)]
    median = statistics.median(warm)
    print(f"first launch, nothing compiled   {cold:.2f} s")
    print(f"relaunch, compile cache warm     {median:.2f} s   ({min(warm):.2f} to {max(warm):.2f})")
    print(f"bar {BAR_SECONDS:g} s: {'reached' if median <= BAR_SECONDS else 'missed'}")
    return 0 if median <= BAR_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
