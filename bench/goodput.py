"""How much of a run's time is training while its machines and trainers are taken away.

    sudo .venv/bin/python -m bench.goodput [--minutes 20] [--seed 1] [--short] [--cloud NAME]

A run of 4 workers on a local cloud of its own, checkpoints in its bucket, for which the
training waits (docs/decisions/0013), a fault every 60 to 120 s in an order that the seed gives,
watch.yml every 5 s. Goodput is the time in steps that counted over
the wall time; what machines take to boot and to be set up (create.yml and setup.yml, by the watch's
log) is left out of it and printed apart. A step that was done twice counted once. `--short` has two
faults on 2 workers, to try this script; `--cloud` takes one that is up and set up, and leaves it.
Exits with 1 where a bar is missed.
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

from bench.disk import warn_of_distortion
from harness.disturbed import BUCKET, TPU, WATCH_EVERY_S, Disturbed, Losses
from harness.faults import FAULTS, HOME_ZONE, Fault
from harness.fleet import Fleet, beside
from localcloud import cloud
from localcloud.place import Place, clouds_directory

GOODPUT_BAR = 0.75
PREEMPTED_BAR_S = 20.0
CHECKPOINT_EVERY = 10
"""Steps; two seconds here. Goodput alone would be best with 30 (docs/recovery.md): so many are done
again after a preemption before the next new one."""

STRIKES = (
    "KILL to one trainer",
    "preempted without warning",
    "TERM to all trainers",
    "KILL to all trainers",
    "TERM to one trainer",
    "maintenance with a new address",
)
SHORT = STRIKES[:2]
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
    """What a fault has cost. Seconds: until the next new step, and of these until it was noticed,
    booting and setup, launching. ``behind`` is the first step of the new attempt."""

    fault: str
    behind: int
    down_s: float
    noticed_s: float
    machines_s: float
    launch_s: float
    again: int

    @property
    def own_s(self) -> float:
        """What is not the machines'."""
        return max(0.0, self.down_s - self.machines_s)

    def line(self) -> str:
        """Say it in a line."""
        rest_s = self.own_s - self.noticed_s - self.launch_s
        return (
            f"  {self.fault:34} {self.own_s:6.1f} s to the next new step (noticed after "
            f"{self.noticed_s:.0f}, launch {self.launch_s:.0f}, start and redone {rest_s:.0f}), "
            f"{self.again:4} steps done twice, boot and setup {self.machines_s:.0f} s"
        )


def machines_seconds(said: str) -> float:
    """Add up what create.yml and setup.yml took, by the watch's log."""
    return float(sum(int(found[1]) for found in MACHINES.finditer(said)))


def launch_seconds(said: str) -> float:
    """Add up what launches took, by the watch's log."""
    return float(sum(int(found[1]) for found in LAUNCHES.finditer(said)))


def first_word(said: str) -> float:
    """Give the unix seconds of the first line of a watch's log."""
    return datetime.fromisoformat(said.split(maxsplit=1)[0]).timestamp()


def counted_seconds(finished_at: dict[int, float], behind: Collection[int] = ()) -> float:
    """Add up the time of the steps that counted, each by how long after its predecessor it ended.

    Several steps may end at once, when a process gives what it had in flight: only their sum says
    what steps take. One that is ``behind`` a fault took what steps take; its wait is the fault's.
    """
    whole = [
        at - finished_at[step - 1]
        for step, at in finished_at.items()
        if step - 1 in finished_at and step not in behind
    ]
    usual = statistics.mean(whole) if whole else 0.0
    return sum(whole) + usual * (len(finished_at) - len(whole))


@contextmanager
def watched(run: Disturbed) -> Iterator[None]:
    """Let a pass of the watch begin every few seconds, or when the one before is through, as its
    timer does."""
    over = threading.Event()

    def passes() -> None:
        due = time.monotonic() + WATCH_EVERY_S
        while not over.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + WATCH_EVERY_S
            run.watch()

    thread = threading.Thread(target=passes)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def cost(
    fault: str, best: int, last: float, finished_at: dict[int, float], said: str, again: int
) -> Loss:
    """Tell what a fault has cost, by when each step ended and what the watch said of it.

    ``best`` is the old attempt's furthest step, which it ended at ``last``. Counted is from then,
    not from when the fault was asked for: to strike takes seconds by itself.
    """
    return Loss(
        fault=fault,
        behind=min(step for step, at in finished_at.items() if at > last),
        down_s=finished_at[best + 1] - last,
        noticed_s=max(0.0, first_word(said) - last),
        machines_s=machines_seconds(said),
        launch_s=launch_seconds(said),
        again=again,
    )


def strike(run: Disturbed, fault: Fault) -> Loss:
    """Let a fault happen, and wait for the next new step."""
    log, attempt, twice = len(run.said()), run.attempt(), run.losses.done_twice
    fault.strike(run)
    if run.wait(lambda: run.attempt() > attempt, 1800):
        best = run.losses.best
        last = run.losses.finished_at[best]
        if run.wait(lambda: run.losses.best > best, 1800):
            finished_at, again = dict(run.losses.finished_at), run.losses.done_twice - twice
            return cost(fault.name, best, last, finished_at, run.said(log), again)
    raise SystemExit(f"goodput: no new step after {fault.name}:\n{run.said(log)}")


def disturb(
    run: Disturbed, seconds: float, order: random.Random, short: bool
) -> tuple[list[Loss], float]:
    """Let faults happen for so long; give what each has cost, and the wall time."""
    faults = {fault.name: fault for fault in FAULTS}
    began, losses, names = time.time(), [], []
    with watched(run):
        while time.time() - began < seconds and not (short and len(losses) == len(SHORT)):
            names = names or list(SHORT if short else STRIKES)
            time.sleep(10 if short else order.uniform(60, 120))
            losses.append(strike(run, faults[names.pop(order.randrange(len(names)))]))
            print(losses[-1].line(), flush=True)
        time.sleep(10)
    return losses, time.time() - began


def report(run: Disturbed, losses: list[Loss], began: float, wall: float) -> int:
    """Print the figures beside their bars; 1 where one is missed."""
    steps = {step: at for step, at in run.losses.finished_at.items() if at >= began}
    machines = sum(loss.machines_s for loss in losses)
    share = counted_seconds(steps, {loss.behind for loss in losses}) / max(1.0, wall - machines)
    preempted = [loss.own_s for loss in losses if loss.fault.startswith("preempted")]
    term = [loss.again for loss in losses if loss.fault.startswith(("TERM", "maintenance"))]
    kill = [loss.again for loss in losses if loss.fault.startswith(("KILL", "preempted"))]
    verdicts = [
        (f"goodput {share:.1%} of {wall - machines:.0f} s", share >= GOODPUT_BAR, "≥ 75 %"),
        (f"steps done twice after TERM {max(term, default=0)}", max(term, default=0) == 0, "0"),
        (
            f"steps done twice after KILL {max(kill, default=0)}",
            max(kill, default=0) <= CHECKPOINT_EVERY,
            f"≤ {CHECKPOINT_EVERY}, the checkpoint interval",
        ),
        (
            f"preemption to the next new step {max(preempted, default=0):.1f} s",
            max(preempted, default=0) <= PREEMPTED_BAR_S,
            f"≤ {PREEMPTED_BAR_S:g} s",
        ),
    ]
    print(f"wall time {wall:.0f} s, of it machines booting and being set up {machines:.0f} s")
    for words, reached, bar in verdicts:
        print(f"{words}   (bar {bar}: {'reached' if reached else 'missed'})")
    return 0 if all(reached for _, reached, _ in verdicts) else 1


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="two faults on 2 workers")
    parser.add_argument("--cloud", default="", help="a cloud that is up and set up")
    options = parser.parse_args()
    warn_of_distortion(clouds_directory())
    place = Place.of(options.cloud or f"goodput-{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="tpufleet-goodput-") as scratch:
        tpu = {
            "name": TPU,
            "zone": HOME_ZONE,
            "accelerator_type": "v4-16" if options.short or options.cloud else "v4-32",
            "runtime_version": "tpu-ubuntu2204-base",
            "spot": True,
        }
        inventory = beside(
            Path(scratch) / "inventory",
            tpu_fleet=[tpu],
            fleet_state=f"{BUCKET}/goodput",
            checkpoints=f"{BUCKET}/goodput/checkpoints",
            watch_log=str(place.directory / "goodput.log"),
            watch_limits={"settle": 15, "first_backoff": 2, "longest_backoff": 20},
        )
        fleet = Fleet(place, inventory)
        config = Path(scratch) / "goodput.yml"
        config.write_text(json.dumps(CONFIG))
        if not options.cloud:
            cloud.up(place, port=None, subnet=None, say=print)
        try:
            return measure(fleet, config, options)
        finally:
            if not options.cloud:
                cloud.down(place, say=print)


def measure(fleet: Fleet, config: Path, options: argparse.Namespace) -> int:
    """Bring the run up, disturb it, and tell."""
    name = f"goodput-{os.getpid()}"
    if not options.cloud:
        fleet.must_play("playbooks/create.yml")
        fleet.must_play("setup.yml")
    with Losses(fleet.place.machines, name).collected() as losses:
        fleet.must_play("train.yml", "-e", f"config={config}", "-e", f"run={name}")
        log = fleet.place.directory / "goodput.log"
        run = Disturbed(fleet, name, losses, log, f"{BUCKET}/goodput")
        began = time.time()
        try:
            order = random.Random(options.seed)  # noqa: S311
            cost, wall = disturb(run, 60 * options.minutes, order, options.short)
            return report(run, cost, began, wall)
        finally:
            fleet.play("playbooks/kill.yml", "-e", f"run={name}")


if __name__ == "__main__":
    sys.exit(main())
