"""Measure how long it takes to read the stored output of many runs for a report.

    .venv/bin/python -m bench.report [--runs 200] [--steps 100000]

Writes the output of runs with two attempts into a directory, as workers store it. Reads it three
times: without a cache, with the cache, and after the output of one run has grown. Prints the
seconds of each, and the size of the cache. Exits with 1 if reading with the cache takes more than
MAX_SECONDS. The runs share their files (hard links), so 200 runs need as much space as one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "collections"))

from ansible_collections.tpufleet.core.plugins.action.report import read_outputs  # noqa: E402
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.objects import OutputDirectory  # noqa: E402
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.run_outputs import RunOutputs  # noqa: E402
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import parse_record  # noqa: E402

from harness.stored_output import EXITS, START_TIME, attempt  # noqa: E402
from harness.valid_record import record_fields  # noqa: E402

MAX_SECONDS = 10.0


def metrics(first: int, last: int, began: float) -> bytes:
    """Return a metrics.jsonl of the steps from ``first`` to ``last``; ``began`` is Unix time."""
    lines = (
        {
            "step": step,
            "loss": round(2 + 8 / (1 + step / 500), 6),
            "tokens_per_second": 1.05e6,
            "time": round(began + 0.5 * (step - first), 3),
        }
        for step in range(first, last + 1)
    )
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def write_runs(folder: Path, runs: int, steps: int) -> None:
    """Write the output of ``runs`` equal runs of two attempts each.

    The second attempt repeats the last tenth of the first attempt's steps.
    """
    middle, resumed = steps // 2, steps // 2 - steps // 20
    later = START_TIME + steps
    log = "".join(f"step {step} loss 2.5 tokens/s 1,050,000\n" for step in range(steps)).encode()
    files = attempt(
        1, run="run-0", log=log[: len(log) // 2], metrics=metrics(1, middle, START_TIME)
    )
    files |= attempt(
        2,
        run="run-0",
        began=later,
        log=log[len(log) // 2 :],
        metrics=metrics(resumed, steps, later),
        end=EXITS["finished"],
    )
    store = OutputDirectory(folder)
    for name, content in files.items():
        store.write(name, content)
    for number in range(1, runs):
        shutil.copytree(folder / "run-0", folder / f"run-{number}", copy_function=os.link)


def main() -> int:
    """Measure and print the times; return 1 if reading with the cache takes too long, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    records = [
        parse_record(name, record_fields(name, wanted="done"))
        for name in (f"run-{number}" for number in range(args.runs))
    ]
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        store, cache = Path(folder) / "outputs", Path(folder) / "cache"
        write_runs(store, args.runs, args.steps)
        for label in ("at first", "again", "after one run has grown"):
            if label != "again" and seconds:
                grown = metrics(args.steps + 1, args.steps + 10, START_TIME)
                OutputDirectory(store).write("run-0/2/0/metrics/999999000000", grown)
            began = time.monotonic()
            outputs, errors = read_outputs(RunOutputs(str(store), str(cache), {}), records)
            seconds.append(time.monotonic() - began)
            if errors or len(outputs) != args.runs:
                raise SystemExit("; ".join(errors))
            print(f"{label}: {seconds[-1]:.1f} s")
        size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    print(f"cache: {size / 1e6:.1f} MB, {args.runs} runs of {args.steps:,} steps")
    return 0 if seconds[1] <= MAX_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
