"""Losses do not depend on the number of processes; processes that do not match are refused."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.trainer_processes import Attempt, loss_log
from train.contract import HUNG

DONE, BAD_CONFIG, INTERRUPTED = 0, 2, 75
WORDS = ["sample.length=0", "checkpoint.keep=null", "checkpoint.every=20"]


@pytest.fixture(scope="module")
def two(launch: Callable[..., Attempt], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of two processes."""
    directory = tmp_path_factory.mktemp("two")
    attempt = launch(directory, [*WORDS, "steps=60"])
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    return directory


def test_a_relaunch_compiles_nothing_again_in_any_process(
    launch: Callable[..., Attempt], tmp_path: Path
):
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax")}

    def kept() -> set[str]:
        attempt = launch(tmp_path, [*WORDS, "steps=1000000"], environment=cache)
        attempt.wait_for_progress()
        attempt.signal(0, signal.SIGTERM)
        assert attempt.codes() == [INTERRUPTED, INTERRUPTED], attempt.logs()
        return {path.name for path in (tmp_path / "jax").iterdir() if "atime" not in path.name}

    first = kept()
    updates = [name for name in first if name.startswith("jit_update")]
    assert len(updates) == 2, first  # each process has its own
    assert [name for name in kept() - first if name.startswith("jit_update")] == []


def test_two_processes_have_the_losses_of_one(two: Path, finished: Path):
    alone, together = loss_log(finished), loss_log(two / "w0")[:40]
    assert [step for step, _ in alone] == [step for step, _ in together]
    # Sums in another order differ in the last bits of float32; training widens the difference.
    np.testing.assert_allclose(
        [loss for _, loss in together[:20]], [loss for _, loss in alone[:20]], rtol=1e-5
    )
    np.testing.assert_allclose(
        [loss for _, loss in together], [loss for _, loss in alone], rtol=1e-3
    )


def test_checkpoints_have_no_array_metadata_files(two: Path):
    assert [path.name for path in two.glob("checkpoints/*/state")]
    assert not list(two.glob("checkpoints/**/array_metadatas"))


@pytest.mark.parametrize(
    ("processes", "first", "other"),
    [(1, 20, []), (4, 40, ["compute.fsdp=2", "sample.length=8"])],
    ids=["1", "4"],
)
def test_with_another_number_of_processes_the_next_20_steps_have_the_same_losses(
    launch: Callable[..., Attempt],
    two: Path,
    tmp_path: Path,
    processes: int,
    first: int,
    other: list[str],
):
    place = Path("checkpoints") / str(first)
    shutil.copytree(two / place, tmp_path / place)
    attempt = launch(tmp_path, [*WORDS, f"steps={first + 20}", *other], processes=processes)
    assert attempt.codes() == [DONE] * processes, attempt.logs()
    assert (tmp_path / "w0" / "sample.txt").exists() == (processes == 4)
    seen, expected = loss_log(tmp_path / "w0"), loss_log(two / "w0")[first : first + 20]
    assert [step for step, _ in seen] == [step for step, _ in expected]
    np.testing.assert_allclose(
        [loss for _, loss in seen], [loss for _, loss in expected], rtol=1e-5
    )


def test_all_processes_refuse_different_configs(launch: Callable[..., Attempt], tmp_path: Path):
    attempt = launch(tmp_path, overrides={1: ["seed=1"]})
    assert attempt.codes() == [BAD_CONFIG, BAD_CONFIG], attempt.logs()
    assert "processes 1 have a different config or corpus than process 0" in attempt.logs()
    assert not list((tmp_path / "checkpoints").iterdir())


def test_all_processes_refuse_different_checkpoints(
    launch: Callable[..., Attempt], finished: Path, tmp_path: Path
):
    (tmp_path / "checkpoints").symlink_to(finished / "checkpoints")
    attempt = launch(tmp_path, own_checkpoints=1)
    assert attempt.codes() == [BAD_CONFIG, BAD_CONFIG], attempt.logs()
    assert "processes 1 find a different newest checkpoint than process 0" in attempt.logs()


def test_a_hanging_run_logs_its_stacks_and_exits(launch: Callable[..., Attempt], tmp_path: Path):
    attempt = launch(tmp_path, [*WORDS, "steps=1000000", "hang_after=3"])
    attempt.wait_for_progress()
    attempt.signal(1, signal.SIGSTOP)
    try:
        assert attempt.processes[0].wait(60) == HUNG, attempt.logs()
    finally:
        attempt.signal(1, signal.SIGKILL)
    log = (tmp_path / "w0" / "log").read_text()
    assert "no step has finished for 3 s (hang_after): exiting after step " in log
    assert "most recent call first" in log
    assert "train/loop.py" in log
    assert '"state": "hung"' in (tmp_path / "w0" / "heartbeat.json").read_text()
