"""A run of two processes that signals interrupt has the losses of an undisturbed run.

TPUFLEET_MOMENTS is the number of interruptions: 2 by default, 20 for a thorough test.
TPUFLEET_MOMENTS_SEED determines when they happen.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.trainer_processes import FULLY_OPTIMIZED, Attempt, loss_log

DONE, BAD_CONFIG, INTERRUPTED = 0, 2, 75
CALL = 5
OVERRIDES = [
    "sample.length=0",
    "checkpoint.keep=null",
    "checkpoint.every=10",
    f"compute.steps_per_call={CALL}",
    "compute.accumulate=2",
    # Fewer parameters compile faster; compilation takes most of the time.
    "model.norm=rms",
    "model.attention_bias=false",
    "model.feedforward_bias=false",
]


@dataclass(frozen=True)
class Disturbance:
    """Result of an attempt in which one process got a signal.

    ``saved`` is the step of the newest checkpoint, ``logged`` the number of steps in metrics.jsonl.
    """

    number: signal.Signals
    codes: list[int]
    """Exit codes; the first is that of the process that got the signal."""
    saved: int
    logged: int
    log: str


@dataclass(frozen=True)
class Outcome:
    """Results of a run that is disturbed several times and then finishes.

    ``finished`` are the exit codes of the last attempt.
    """

    disturbances: list[Disturbance]
    finished: list[int]
    log: str
    """Logs of all attempts."""
    losses: list[tuple[int, float]]
    undisturbed: list[tuple[int, float]]

    def ended_by(self, number: signal.Signals) -> list[Disturbance]:
        matching = [
            disturbance for disturbance in self.disturbances if disturbance.number == number
        ]
        assert matching
        return matching


def saved(directory: Path) -> int:
    """Return the step of the newest complete checkpoint, which has a manifest."""
    complete = directory.glob("checkpoints/*/manifest.json")
    steps = [path.parent.name for path in complete]
    return max((int(step) for step in steps if step.isdecimal()), default=0)


@pytest.fixture(scope="module")
def outcome(launch: Callable[..., Attempt], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    directory, quiet = (tmp_path_factory.mktemp(name) for name in ("disturbed", "undisturbed"))
    draw = random.Random(os.environ.get("TPUFLEET_MOMENTS_SEED", "0"))  # noqa: S311

    def start(steps: int, run_directory: Path = directory) -> Attempt:
        return launch(run_directory, [*OVERRIDES, f"steps={steps}"], environment=FULLY_OPTIMIZED)

    def disturb(moment: int) -> Disturbance:
        before = saved(directory)
        attempt = start(10**6)
        attempt.wait_for(lambda: saved(directory) > before)
        number = (signal.SIGKILL, signal.SIGTERM)[moment % 2]
        if moment % 4 == 0:  # send the signal in the middle of a save
            attempt.wait_for(lambda: any(directory.glob("checkpoints/*.orbax-checkpoint-tmp*")))
        else:
            time.sleep(draw.uniform(0, 2))
        hit = draw.randrange(2)
        attempt.signal(hit, number)
        codes = attempt.codes()
        if hit:
            codes.reverse()
        logged = len(loss_log(directory / "w0"))
        return Disturbance(number, codes, saved(directory), logged, attempt.logs())

    disturbances = [disturb(i) for i in range(int(os.environ.get("TPUFLEET_MOMENTS", "2")))]
    end = saved(directory) + 20
    attempt = start(end)
    finished, log = attempt.codes(), attempt.logs()
    attempt = start(end, quiet)
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    losses, undisturbed = (loss_log(run_directory / "w0") for run_directory in (directory, quiet))
    return Outcome(disturbances, finished, log, losses, undisturbed)


def test_sigkill_of_one_process_ends_the_other_as_crashed(outcome: Outcome):
    for killed in outcome.ended_by(signal.SIGKILL):
        assert killed.codes[0] == -signal.SIGKILL
        assert killed.codes[1] not in (DONE, BAD_CONFIG, INTERRUPTED)


def test_after_a_kill_the_run_resumes_from_its_last_checkpoint(outcome: Outcome):
    for killed in outcome.ended_by(signal.SIGKILL):
        assert killed.saved >= 10
        assert f"from step {killed.saved} of" in outcome.log


def test_sigterm_to_one_process_ends_both_as_interrupted(outcome: Outcome):
    for stopped in outcome.ended_by(signal.SIGTERM):
        assert stopped.codes == [INTERRUPTED, INTERRUPTED], stopped.log


def test_sigterm_loses_no_step_and_ends_both_processes_between_the_same_calls(outcome: Outcome):
    for stopped in outcome.ended_by(signal.SIGTERM):
        assert stopped.saved == stopped.logged
        assert stopped.saved % CALL == 0


def test_after_an_interruption_the_run_resumes_at_its_last_step(outcome: Outcome):
    assert outcome.finished == [DONE, DONE], outcome.log
    for stopped in outcome.ended_by(signal.SIGTERM):
        assert f"from step {stopped.saved} of" in outcome.log


def test_an_interrupted_run_has_bitwise_the_losses_of_an_undisturbed_run(outcome: Outcome):
    assert [step for step, _ in outcome.losses] == list(range(1, len(outcome.losses) + 1))
    assert outcome.losses == outcome.undisturbed
