"""A run that is disturbed at any moment, and goes on, logs what the undisturbed one does.

TPUFLEET_MOMENTS is how many moments (2 unless it is set; the full proof is 20); which they are
follows from TPUFLEET_MOMENTS_SEED.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.train.trainer_processes import AS_ANYBODY_S, Attempt, loss_log
from train.contract import HUNG

DONE, INTERRUPTED = 0, 75
ENDLESS = "steps=1000000"
WORDS = ["sample.length=0", "checkpoint.keep=null"]
SPECIAL = ["compute.steps_per_call=5", "compute.accumulate=2", "checkpoint.every=10"]


def saved(directory: Path) -> int:
    """The last step of which there is a whole checkpoint."""
    whole = directory.glob("checkpoints/*/manifest.json")
    return max((int(path.parent.name) for path in whole), default=0)


def test_killed_in_a_save_or_at_any_moment_it_logs_the_undisturbed_losses_to_the_bit(
    launch: Callable[..., Attempt], tmp_path: Path
):
    moments = int(os.environ.get("TPUFLEET_MOMENTS", "2"))
    draw = random.Random(os.environ.get("TPUFLEET_MOMENTS_SEED", "0"))  # noqa: S311
    directory, words = tmp_path / "disturbed", [*WORDS, *SPECIAL, ENDLESS]
    for moment in range(moments):
        before = saved(directory)
        attempt = launch(directory, words, environment=AS_ANYBODY_S)
        attempt.wait_for(lambda before=before: saved(directory) > before)
        if moment % 2 == 0:  # in the middle of a save
            attempt.wait_for(lambda: any(directory.glob("checkpoints/*.orbax-checkpoint-tmp*")))
            number = signal.SIGKILL
        else:
            time.sleep(draw.uniform(0, 2))
            number = draw.choice([signal.SIGKILL, signal.SIGTERM])
        attempt.signal(draw.randrange(2), number)
        codes = attempt.codes()
        assert (codes == [INTERRUPTED] * 2) == (number == signal.SIGTERM), attempt.logs()
    end = saved(directory) + 20
    for place in (directory, tmp_path / "undisturbed"):
        attempt = launch(place, [*WORDS, *SPECIAL, f"steps={end}"], environment=AS_ANYBODY_S)
        assert attempt.codes() == [DONE, DONE], attempt.logs()
    disturbed, undisturbed = (loss_log(tmp_path / n / "w0") for n in ("disturbed", "undisturbed"))
    assert [step for step, _ in disturbed] == list(range(1, end + 1))
    assert disturbed == undisturbed


def test_with_another_number_of_processes_the_next_20_steps_have_the_same_losses(
    launch: Callable[..., Attempt], tmp_path: Path
):
    words = [*WORDS, "checkpoint.every=20"]
    attempt = launch(tmp_path / "2", [*words, "steps=60"])
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    two = loss_log(tmp_path / "2" / "w0")
    for processes, first, other in ((1, 20, []), (4, 40, ["compute.fsdp=2", "sample.length=8"])):
        directory = tmp_path / str(processes)
        shutil.copytree(
            tmp_path / "2" / "checkpoints" / str(first), directory / "checkpoints" / str(first)
        )
        attempt = launch(directory, [*words, f"steps={first + 20}", *other], processes=processes)
        assert attempt.codes() == [DONE] * processes, attempt.logs()
        assert (directory / "w0" / "sample.txt").exists() == (processes == 4)
        seen = loss_log(directory / "w0")
        assert [step for step, _ in seen] == list(range(first + 1, first + 21))
        np.testing.assert_allclose(
            [loss for _, loss in seen], [loss for _, loss in two[first : first + 20]], rtol=1e-5
        )


def test_a_run_that_hangs_says_where_and_ends(launch: Callable[..., Attempt], tmp_path: Path):
    attempt = launch(tmp_path, [*WORDS, ENDLESS, "hang_after=3"])
    attempt.wait_for_progress()
    attempt.signal(1, signal.SIGSTOP)
    try:
        assert attempt.processes[0].wait(60) == HUNG, attempt.logs()
    finally:
        attempt.signal(1, signal.SIGKILL)
    log = (tmp_path / "w0" / "log").read_text()
    assert "no step has finished for 3 s (hang_after): giving up behind step " in log
    assert "most recent call first" in log
    assert "train/loop.py" in log
    assert '"state": "hung"' in (tmp_path / "w0" / "heartbeat.json").read_text()
