"""A run of two processes with its checkpoints and compiled programs in a bucket.

The first attempt is killed, and its newest checkpoint is damaged. The second attempt has new disks;
SIGTERM ends it when it has repeated the steps after the intact checkpoint.
"""

import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.trainer_processes import Attempt, loss_log
from tests.train.bucket import NAME, emulated_bucket
from train.run.checkpoint import MANIFEST, OWNER
from train.run.contract import INTERRUPTED
from train.storage import open_filesystem

EVERY = 20
OVERRIDES = [
    "steps=1000000",
    "sample.length=0",
    "checkpoint.keep=null",
    f"checkpoint.every={EVERY}",
    # Fewer parameters compile faster; compilation takes most of the time.
    "model.norm=rms",
    "model.attention_bias=false",
    "model.feedforward_bias=false",
]
CHECKPOINTS = f"{NAME}/runs/test"
COMPILED = f"{CHECKPOINTS}/compiled"


@dataclass(frozen=True)
class Resumed:
    """What a killed attempt and the attempt that resumed its run left behind."""

    damaged: int
    """The step of the checkpoint that was damaged between the attempts."""
    first: Path
    """Run directory of the first attempt."""
    second: Path
    """Run directory of the second attempt."""
    second_log: str
    files: Any
    """The file system of the bucket."""


def updates(paths: Iterable[str]) -> set[str]:
    """Return the file names of compiled training steps among ``paths``."""
    names = (path.rpartition("/")[2] for path in paths)
    return {name for name in names if name.startswith("jit_update")}


def saved(files: Any) -> list[int]:
    """Return the steps of the complete checkpoints, in order."""
    return sorted(int(path.split("/")[-2]) for path in files.glob(f"{CHECKPOINTS}/*/{MANIFEST}"))


def damage(files: Any, step: int) -> None:
    """Remove the last byte of the largest file of a checkpoint."""
    sizes = files.find(f"{CHECKPOINTS}/{step}", detail=True)
    longest = max(sizes, key=lambda name: sizes[name]["size"])
    files.pipe_file(longest, files.cat_file(longest)[:-1])


@pytest.fixture(scope="module")
def resumed(
    launch: Callable[..., Attempt], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Resumed]:
    directory = tmp_path_factory.mktemp("bucket")
    with emulated_bucket() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        files = open_filesystem(f"gs://{NAME}")[0]
        environment["TPUFLEET_CHECKPOINTS"] = f"gs://{CHECKPOINTS}"

        def attempt(name: str, *program: str) -> Attempt:
            return launch(directory / name, OVERRIDES, environment=environment, program=program)

        first = attempt("first", "tests.train.uploading_soon")
        first.wait_for(lambda: len(saved(files)) > 1 and bool(updates(files.find(COMPILED))))
        first.kill()
        damaged = saved(files)[-1]
        damage(files, damaged)
        second = attempt("second", "train", "run")
        second.wait_for(lambda: len(loss_log(second.directory / "w0")) > EVERY)
        second.signal(0, signal.SIGTERM)
        assert second.codes() == [INTERRUPTED, INTERRUPTED], second.logs()
        yield Resumed(damaged, directory / "first", directory / "second", second.logs(), files)


def test_the_run_resumes_from_the_checkpoint_before_the_damaged_one(resumed: Resumed):
    step = resumed.damaged
    assert f"{step}: renamed to {step}.damaged" in resumed.second_log
    assert resumed.second_log.count(f"from step {step - EVERY} of 1000000") == 2


def test_repeated_steps_have_bitwise_the_same_losses(resumed: Resumed):
    before, after = (loss_log(path / "w0") for path in (resumed.first, resumed.second))
    assert after[:EVERY] == before[resumed.damaged - EVERY : resumed.damaged]


def test_the_bucket_has_all_checkpoints_and_no_remains_of_a_save(resumed: Resumed):
    paths = resumed.files.ls(CHECKPOINTS, detail=False)
    names = {path.rpartition("/")[2] for path in paths} - {"compiled", "corpus", OWNER}
    last = loss_log(resumed.second / "w0")[-1][0]
    steps = {*range(EVERY, last, EVERY), last}
    assert names == {*map(str, steps), f"{resumed.damaged}.damaged"}


def test_an_attempt_on_new_disks_does_not_compile_its_step_again(resumed: Resumed):
    assert resumed.second_log.count("compiled programs from gs://") == 2
    uploaded = updates(resumed.files.find(COMPILED))
    assert len(uploaded) == 1  # JAX writes its cache in process 0 only
    for process in ("w0", "w1"):
        compiled = (resumed.second / process / "compiled").iterdir()
        assert updates(path.name for path in compiled) == uploaded
