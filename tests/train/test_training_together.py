"""Two real processes, one mesh: the same losses as one, and the same after any interruption."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.train.trainer_processes import Attempt, loss_log

DONE, BAD_CONFIG, INTERRUPTED = 0, 2, 75
ENDLESS = 10**6


@dataclass(frozen=True)
class Story:
    """One run of two processes: one is killed, one is told to leave, and it ends all the same."""

    killed: list[int]
    saved_before_kill: int
    resumed: str
    interrupted: list[int]
    logged: int
    saved: int
    finished: list[int]
    last_words: str
    losses: list[tuple[int, float]]
    undisturbed: list[tuple[int, float]]


@pytest.fixture(scope="module")
def story(launch: Callable[..., Attempt], tmp_path_factory: pytest.TempPathFactory) -> Story:
    directory = tmp_path_factory.mktemp("disturbed")

    def start(steps: int, where: Path = directory, every: int = 1000) -> Attempt:
        words = [f"steps={steps}", f"checkpoint.every={every}", "sample.length=0"]
        return launch(where, overrides={0: words, 1: words})

    def saved() -> int:
        # A kill may leave a newer one that lacks its manifest: that one was not saved.
        whole = (directory / "checkpoints").glob("*/manifest.json")
        return max(int(path.parent.name) for path in whole if path.parent.name.isdecimal())

    attempt = start(ENDLESS, every=20)
    attempt.wait_for_step(45)
    attempt.signal(1, signal.SIGKILL)
    killed, saved_before_kill = attempt.codes(), saved()

    attempt = start(ENDLESS)
    attempt.wait_for_progress()
    attempt.signal(1, signal.SIGTERM)
    interrupted, resumed = attempt.codes(), attempt.logs()
    saved_last, logged = saved(), len(loss_log(directory / "w0"))

    attempt = start(saved_last + 20)
    finished, last_words = attempt.codes(), attempt.logs()

    quiet = tmp_path_factory.mktemp("undisturbed")
    attempt = start(saved_last + 20, quiet)
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    return Story(
        killed,
        saved_before_kill,
        resumed,
        interrupted,
        logged,
        saved_last,
        finished,
        last_words,
        loss_log(directory / "w0"),
        loss_log(quiet / "w0"),
    )


def test_sigkill_of_one_ends_the_other_as_crashed(story: Story):
    assert story.killed[1] == -signal.SIGKILL
    assert story.killed[0] not in (DONE, BAD_CONFIG, INTERRUPTED)


def test_after_a_kill_the_run_goes_on_from_its_last_checkpoint(story: Story):
    assert story.saved_before_kill >= 20
    assert f"from step {story.saved_before_kill} of" in story.resumed


def test_sigterm_to_one_makes_both_leave_as_interrupted(story: Story):
    assert story.interrupted == [INTERRUPTED, INTERRUPTED], story.resumed


def test_sigterm_loses_no_step_that_was_taken(story: Story):
    assert story.saved == story.logged


def test_after_an_interruption_the_run_goes_on_where_it_was(story: Story):
    assert story.finished == [DONE, DONE], story.last_words
    assert f"from step {story.saved} of" in story.last_words


def test_the_loss_log_of_a_disturbed_run_is_the_undisturbed_one_to_the_bit(story: Story):
    assert story.losses == story.undisturbed


def test_two_processes_log_the_losses_of_one(story: Story, finished: Path):
    alone, together = loss_log(finished), story.undisturbed[:40]
    assert [step for step, _ in alone] == [step for step, _ in together]
    # Sums in another order differ in the last bits of float32; training widens the difference.
    np.testing.assert_allclose(
        [loss for _, loss in together[:20]], [loss for _, loss in alone[:20]], rtol=1e-5
    )
    np.testing.assert_allclose(
        [loss for _, loss in together], [loss for _, loss in alone], rtol=1e-3
    )


def test_processes_with_different_configs_are_refused_by_all(
    launch: Callable[..., Attempt], tmp_path: Path
):
    attempt = launch(tmp_path, overrides={1: ["seed=1"]})
    assert attempt.codes() == [BAD_CONFIG, BAD_CONFIG], attempt.logs()
    assert "processes 1 have another config or corpus than process 0" in attempt.logs()
    assert not list((tmp_path / "checkpoints").iterdir())


def test_processes_that_see_different_checkpoints_are_refused_by_all(
    launch: Callable[..., Attempt], finished: Path, tmp_path: Path
):
    (tmp_path / "checkpoints").symlink_to(finished / "checkpoints")
    attempt = launch(tmp_path, own_checkpoints=1)
    assert attempt.codes() == [BAD_CONFIG, BAD_CONFIG], attempt.logs()
    assert "processes 1 find another last checkpoint than process 0" in attempt.logs()
