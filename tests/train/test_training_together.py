"""Two real processes, one mesh: the same losses as one, and the same after any interruption."""

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.train.trainer_processes import Attempt, loss_log

DONE, CRASHED, BAD_CONFIG, INTERRUPTED = 0, 1, 2, 75


@pytest.fixture(scope="module")
def undisturbed(
    launch: Callable[..., Attempt], tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[int, float]]:
    """The loss log of two processes that nothing happened to."""
    directory = tmp_path_factory.mktemp("undisturbed")
    attempt = launch(directory)
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    return loss_log(directory / "w0")


def test_two_processes_log_the_losses_of_one(
    undisturbed: list[tuple[int, float]], launch: Callable[..., Attempt], tmp_path: Path
):
    attempt = launch(tmp_path, count=1)
    assert attempt.codes() == [DONE], attempt.logs()
    alone = loss_log(tmp_path / "w0")
    assert [step for step, _ in alone] == [step for step, _ in undisturbed]
    # Sums in another order differ in the last bits of float32; training widens the difference.
    np.testing.assert_allclose(
        [loss for _, loss in undisturbed[:20]], [loss for _, loss in alone[:20]], rtol=1e-5
    )
    np.testing.assert_allclose(
        [loss for _, loss in undisturbed], [loss for _, loss in alone], rtol=1e-3
    )


def test_sigterm_to_one_saves_in_all_and_the_run_goes_on_to_the_bit(
    undisturbed: list[tuple[int, float]], launch: Callable[..., Attempt], tmp_path: Path
):
    attempt = launch(tmp_path)
    attempt.wait_for_step(5)
    attempt.signal(1, signal.SIGTERM)
    assert attempt.codes() == [INTERRUPTED, INTERRUPTED], attempt.logs()
    interrupted = loss_log(tmp_path / "w0")
    assert len(interrupted) < len(undisturbed)
    saved = max(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert saved == len(interrupted)

    attempt = launch(tmp_path)
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    assert f"from step {saved} of" in attempt.logs()
    assert loss_log(tmp_path / "w0") == undisturbed


def test_sigkill_of_one_ends_the_other_and_the_run_goes_on_to_the_bit(
    undisturbed: list[tuple[int, float]], launch: Callable[..., Attempt], tmp_path: Path
):
    attempt = launch(tmp_path)
    attempt.wait_for_step(25)
    attempt.signal(1, signal.SIGKILL)
    codes = attempt.codes()
    assert codes[1] == -signal.SIGKILL, attempt.logs()
    assert codes[0] not in (DONE, BAD_CONFIG, INTERRUPTED), attempt.logs()

    attempt = launch(tmp_path)
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    assert "from step 20 of" in attempt.logs()
    assert loss_log(tmp_path / "w0") == undisturbed


def test_processes_with_different_configs_are_refused_by_all(
    launch: Callable[..., Attempt], tmp_path: Path
):
    attempt = launch(tmp_path, overrides={1: ["seed=1"]})
    assert attempt.codes() == [BAD_CONFIG, BAD_CONFIG], attempt.logs()
    assert "processes 1 have another config or corpus than process 0" in attempt.logs()
    assert not list((tmp_path / "checkpoints").iterdir())
