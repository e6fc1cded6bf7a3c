"""Measure goodput: the share of a run's time spent training, under faults and preemptions.

    sudo .venv/bin/python -m bench.goodput [--minutes 20] [--seed 1] [--short] [--cloud NAME]

The run has 4 workers on its own local cloud. Its checkpoints are in the bucket, and each save
blocks training (docs/decisions/0013). watch.yml runs every 5 s. Each fault is injected 60 to 120 s
after the run has recovered from the fault before; the seed determines these times and the order of
the faults. Goodput is here the time spent in steps, each step counted once, divided by the wall
time without boot and setup of machines (create.yml and setup.yml in the watch's log), which are
printed separately. `--short` injects two faults on 2 workers, to try this script; `--cloud` uses an
existing cloud whose TPU `demo` has 2 workers that are set up. Exits with 1 if a target is missed.
"""

import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "collections"))

from harness.disturbed import BUCKET, TPU, DisturbedRun, Losses
from harness.faults import FAULTS, Fault
from harness.fleet import Fleet, fleet_entry, write_inventory
from harness.own_cloud import own_or_existing_cloud

GOODPUT_TARGET = 0.75
PREEMPTED_TARGET_S = 20.0
WATCH_EVERY_S = 5.0
CHECKPOINT_EVERY = 10
"""Steps between two checkpoints, two seconds of training here. By the formula in docs/recovery.md,
goodput is best with 30, but then a preemption could repeat up to 30 steps."""

FAULT_NAMES = (
    "KILL to one trainer",
    "preempted without warning",
    "TERM to all trainers",
    "KILL to all trainers",
    "TERM to one trainer",
    "maintenance with a new address",
)
SHORT = FAULT_NAMES[:2]
CONFIG = {
    "steps": 100_000_000,
    "batch": 8,
    "model": {"layers": 2, "heads": 4, "width": 96, "context": 64},
    "checkpoint": {"every": CHECKPOINT_EVERY, "wait": True},
    "sample": {"length": 0},
}
ENDED = r" (?:succeeded, |failed after )(\d+) s"
MACHINES = re.compile(r"(?:playbooks/create\.yml|setup\.yml)" + ENDED)
LAUNCHES = re.compile(r"train\.yml" + ENDED)


@dataclass(frozen=True)
class Loss:
    """The cost of a fault.

    ``down_s`` is the time in seconds from the old attempt's last step to the next new (not
    repeated) step. It includes ``noticed_s`` (until the watch noticed the fault), ``machines_s``
    (boot and setup of machines) and ``launch_s`` (launches). ``first_step`` is the first step of
    the new attempt, ``repeated_steps`` the number of repeated steps.
    """

    fault: str
    first_step: int
    down_s: float
    noticed_s: float
    machines_s: float
    launch_s: float
    repeated_steps: int

    @property
    def own_s(self) -> float:
        """``down_s`` without boot and setup of machines."""
        return max(0.0, self.down_s - self.machines_s)

    def line(self) -> str:
        """Format the cost of the fault as one line."""
        rest_s = self.own_s - self.noticed_s - self.launch_s
        return (
            f"  {self.fault:34} {self.own_s:6.1f} s to the next new step (noticed after "
            f"{self.noticed_s:.0f}, launch {self.launch_s:.0f}, "
            f"start and repeated steps {rest_s:.0f}), "
            f"{self.repeated_steps:4} steps repeated, boot and setup {self.machines_s:.0f} s"
        )


def logged_seconds(playbooks: re.Pattern[str], log: str) -> float:
    """Return the total seconds that playbooks took, according to the watch's log.

    ``playbooks`` is MACHINES or LAUNCHES, which match the lines of the playbooks to count.
    """
    return float(sum(int(match[1]) for match in playbooks.finditer(log)))


def first_line_at(log: str) -> float:
    """Return when the first line of a watch's log was written, in unix seconds."""
    return datetime.fromisoformat(log.split(maxsplit=1)[0]).timestamp()


def counted_seconds(finished_at: dict[int, float], first_steps: Collection[int] = ()) -> float:
    """Return the total seconds of the steps, each measured from the end of the step before it.

    ``finished_at`` is when each step ended. Only the sum is meaningful, because the trainer logs
    several steps at once. ``first_steps`` are the first steps after faults. Their own durations
    include the faults, so each counts with the mean duration of the other steps.
    """
    durations = [
        at - finished_at[step - 1]
        for step, at in finished_at.items()
        if step - 1 in finished_at and step not in first_steps
    ]
    mean = statistics.mean(durations) if durations else 0.0
    return sum(durations) + mean * (len(finished_at) - len(durations))


@contextmanager
def watched(run: DisturbedRun) -> Iterator[None]:
    """Run a pass of the watch every WATCH_EVERY_S seconds during the ``with`` block.

    A pass that takes longer delays the next one, as with the watch's timer.
    """
    stop = threading.Event()

    def passes() -> None:
        due = time.monotonic() + WATCH_EVERY_S
        while not stop.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + WATCH_EVERY_S
            run.watch()

    thread = threading.Thread(target=passes)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def cost(
    fault: str, best: int, last: float, finished_at: dict[int, float], log: str, repeated_steps: int
) -> Loss:
    """Return the cost of a fault.

    ``best`` is the number of the old attempt's last step, and ``last`` the time when it ended. The
    cost is measured from ``last`` and not from the injection of the fault, because the injection
    itself takes seconds. ``finished_at`` maps each step to the time when it ended. ``log`` is what
    the watch logged since the fault, and ``repeated_steps`` the number of repeated steps.
    """
    return Loss(
        fault=fault,
        first_step=min(step for step, at in finished_at.items() if at > last),
        down_s=finished_at[best + 1] - last,
        noticed_s=max(0.0, first_line_at(log) - last),
        machines_s=logged_seconds(MACHINES, log),
        launch_s=logged_seconds(LAUNCHES, log),
        repeated_steps=repeated_steps,
    )


def inject(run: DisturbedRun, fault: Fault) -> Loss:
    """Inject a fault and wait for the next new (not repeated) step; return the cost."""
    log, attempt, repeated_before = len(run.watch_log()), run.attempt(), run.losses.repeated
    fault.inject(run)
    if run.wait(lambda: run.attempt() > attempt, 1800):
        best = run.losses.best
        last = run.losses.finished_at[best]
        if run.wait(lambda: run.losses.best > best, 1800):
            finished_at, repeated_steps = (
                dict(run.losses.finished_at),
                run.losses.repeated - repeated_before,
            )
            return cost(fault.name, best, last, finished_at, run.watch_log(log), repeated_steps)
    raise SystemExit(f"goodput: no new step after {fault.name}:\n{run.watch_log(log)}")


def disturb(
    run: DisturbedRun, seconds: float, order: random.Random, short: bool
) -> tuple[list[Loss], float]:
    """Inject faults for ``seconds``; return the cost of each, and the wall time in seconds.

    ``order`` is the random generator for the order of the faults and the pauses between them. With
    ``short``, injects only the faults named in SHORT, each once.
    """
    faults = {fault.name: fault for fault in FAULTS}
    began, losses, names = time.time(), [], []
    with watched(run):
        while time.time() - began < seconds and not (short and len(losses) == len(SHORT)):
            names = names or list(SHORT if short else FAULT_NAMES)
            time.sleep(10 if short else order.uniform(60, 120))
            losses.append(inject(run, faults[names.pop(order.randrange(len(names)))]))
            print(losses[-1].line(), flush=True)
        time.sleep(10)
    return losses, time.time() - began


def report(run: DisturbedRun, losses: list[Loss], began: float, wall: float) -> int:
    """Print goodput, repeated steps and recovery times; return 1 if a target is missed, else 0.

    ``losses`` has the cost of each fault. ``began`` is when the faults began (Unix time), and
    ``wall`` is how many seconds they took.
    """
    steps = {step: at for step, at in run.losses.finished_at.items() if at >= began}
    machines = sum(loss.machines_s for loss in losses)
    share = counted_seconds(steps, {loss.first_step for loss in losses}) / max(1.0, wall - machines)
    preempted = [loss.own_s for loss in losses if loss.fault.startswith("preempted")]
    term = [
        loss.repeated_steps for loss in losses if loss.fault.startswith(("TERM", "maintenance"))
    ]
    kill = [loss.repeated_steps for loss in losses if loss.fault.startswith(("KILL", "preempted"))]
    verdicts = [
        (f"goodput {share:.1%} of {wall - machines:.0f} s", share >= GOODPUT_TARGET, "≥ 75 %"),
        (f"steps repeated after TERM {max(term, default=0)}", max(term, default=0) == 0, "0"),
        (
            f"steps repeated after KILL {max(kill, default=0)}",
            max(kill, default=0) <= CHECKPOINT_EVERY,
            f"≤ {CHECKPOINT_EVERY}, the checkpoint interval",
        ),
        (
            f"preemption to the next new step {max(preempted, default=0):.1f} s",
            max(preempted, default=0) <= PREEMPTED_TARGET_S,
            f"≤ {PREEMPTED_TARGET_S:g} s",
        ),
    ]
    counts = (len(losses), len(term), len(kill), len(preempted))
    print(f"wall time {wall:.0f} s, including boot and setup of machines {machines:.0f} s")
    for (text, reached, target), count in zip(verdicts, counts, strict=True):
        verdict = ("reached" if reached else "missed") if count else "not measured: no such fault"
        print(f"{text}   (target {target}: {verdict})")
    return 0 if all(reached for _, reached, _ in verdicts) else 1


def main() -> int:
    """Measure goodput on a new or existing cloud; return 1 if a target is missed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--minutes", type=float, default=20, help="minutes of injected faults (default: 20)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="determines the order of the faults (default: 1)"
    )
    parser.add_argument("--short", action="store_true", help="inject two faults, on 2 workers")
    parser.add_argument(
        "--cloud",
        default="",
        help=f"an existing cloud whose TPU {TPU} has 2 workers that are set up",
    )
    options = parser.parse_args()
    with (
        own_or_existing_cloud("goodput", options.cloud) as cloud,
        tempfile.TemporaryDirectory(prefix="tpufleet-goodput-") as scratch,
    ):
        workers = 2 if options.short or options.cloud else 4
        inventory = write_inventory(
            Path(scratch) / "inventory",
            tpu_fleet=[fleet_entry(TPU, workers, spot=True)],
            fleet_state=f"{BUCKET}/goodput",
            checkpoints=f"{BUCKET}/goodput/checkpoints",
            watch_log=str(cloud.directory / "goodput.log"),
            watch_limits={"settle": 15, "first_backoff": 2, "longest_backoff": 20},
        )
        fleet = Fleet(cloud, inventory)
        config = Path(scratch) / "goodput.yml"
        config.write_text(json.dumps(CONFIG))
        return measure(fleet, config, options)


def measure(fleet: Fleet, config: Path, options: argparse.Namespace) -> int:
    """Launch a run, inject faults, and print the report; return 1 if a target is missed, else 0."""
    name = f"goodput-{os.getpid()}"
    if not options.cloud:
        fleet.must_play("playbooks/create.yml")
        fleet.must_play("setup.yml")
    with Losses(fleet.cloud.machines, name).collected() as losses:
        fleet.must_play("train.yml", "-e", f"config={config}", "-e", f"run={name}")
        log = fleet.cloud.directory / "goodput.log"
        run = DisturbedRun(fleet, name, losses, log, f"{BUCKET}/goodput")
        began = time.time()
        try:
            order = random.Random(options.seed)  # noqa: S311
            cost, wall = disturb(run, 60 * options.minutes, order, options.short)
            return report(run, cost, began, wall)
        finally:
            fleet.play("playbooks/kill.yml", "-e", f"run={name}")


if __name__ == "__main__":
    sys.exit(main())
