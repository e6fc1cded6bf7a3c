"""Losses do not depend on the number of processes; processes that do not match are refused."""

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from harness.trainer_processes import PROJECT, Attempt, loss_log
from train.run.contract import HUNG, NOT_A_NUMBER

DONE, BAD_CONFIG = 0, 2
OVERRIDES = ["sample.length=0", "checkpoint.keep=null", "checkpoint.every=20"]


@pytest.fixture(scope="module")
def two(launch: Callable[..., Attempt], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of two processes."""
    directory = tmp_path_factory.mktemp("two")
    attempt = launch(directory, [*OVERRIDES, "steps=60"])
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    return directory


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


def test_a_run_resumed_on_four_devices_has_the_same_losses(
    launch: Callable[..., Attempt], two: Path, tmp_path: Path
):
    checkpoint = Path("checkpoints") / "40"
    shutil.copytree(two / checkpoint, tmp_path / checkpoint)
    overrides = [*OVERRIDES, "steps=60", "compute.fsdp=2", "sample.length=8"]
    attempt = launch(tmp_path, overrides, processes=4)
    assert attempt.codes() == [DONE] * 4, attempt.logs()
    assert (tmp_path / "w0" / "sample.txt").exists()
    observed, expected = loss_log(tmp_path / "w0"), loss_log(two / "w0")[40:]
    assert [step for step, _ in observed] == [step for step, _ in expected]
    np.testing.assert_allclose(
        [loss for _, loss in observed], [loss for _, loss in expected], rtol=1e-5
    )


def test_only_one_process_reads_a_replicated_state(
    launch: Callable[..., Attempt], two: Path, tmp_path: Path
):
    checkpoint = Path("checkpoints") / "60"
    for directory in (tmp_path, tmp_path / "w1"):
        shutil.copytree(two / checkpoint, directory / checkpoint)
    data = [path for path in (tmp_path / "w1").rglob("d/*") if path.is_file()]
    assert data
    for path in data:
        path.unlink()
    attempt = launch(tmp_path, [*OVERRIDES, "steps=60"], own_checkpoints=1)
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    assert attempt.logs().count("already at step 60 of 60") == 2


def test_all_processes_refuse_different_configs(launch: Callable[..., Attempt], tmp_path: Path):
    attempt = launch(tmp_path, process_overrides={1: ["seed=1"]})
    assert attempt.codes() == [BAD_CONFIG, BAD_CONFIG], attempt.logs()
    assert "processes 1 have a different config or corpus than process 0" in attempt.logs()
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))


def test_all_processes_refuse_different_checkpoints(
    launch: Callable[..., Attempt], finished: Path, tmp_path: Path
):
    (tmp_path / "checkpoints").symlink_to(finished / "checkpoints")
    attempt = launch(tmp_path, own_checkpoints=1, environment={"TPUFLEET_RUN": "alone"})
    assert attempt.codes() == [BAD_CONFIG, BAD_CONFIG], attempt.logs()
    assert "processes 1 do not find the files of process 0 in" in attempt.logs()


def test_a_hanging_run_logs_its_stacks_and_exits(launch: Callable[..., Attempt], tmp_path: Path):
    attempt = launch(tmp_path, [*OVERRIDES, "steps=1000000", "hang_after=3"])
    attempt.wait_for_progress()
    attempt.signal(1, signal.SIGSTOP)
    try:
        assert attempt.processes[0].wait(60) == HUNG, attempt.logs()
    finally:
        attempt.signal(1, signal.SIGKILL)
    log = (tmp_path / "w0" / "log").read_text()
    assert "no step has finished for 3 s: exiting after step " in log
    assert "most recent call first" in log
    assert "train/run/loop.py" in log
    assert '"state": "hung"' in (tmp_path / "w0" / "heartbeat.json").read_text()


def printed(log: Path, start: int) -> list[str]:
    """Split the log after ``start`` at the names of verbs: "", a verb, its output, a verb, ..."""
    lines = log.read_text()[start:].splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("[Gloo]"))
    return re.split(r"^--- (\w+)\n", text, flags=re.MULTILINE)


def outputs_of(launch: Callable[..., Attempt], run: Path, processes: int) -> dict[str, str]:
    """Run the verbs of reading_verbs.py; return each one's output, which only process 0 prints."""
    logs = [run / f"w{i}" / "log" for i in range(processes)]
    before = [len(log.read_text()) for log in logs]
    overrides = ["compute.fsdp=null", "sample.length=20", "sample.temperature=0"]
    attempt = launch(run, overrides, program=("tests.train.reading_verbs",), processes=processes)
    assert attempt.codes() == [DONE] * processes, attempt.logs()
    first, *others = map(printed, logs, before)
    assert not any(text for sections in others for text in sections[::2])
    return dict(zip(first[1::2], first[2::2], strict=True))


def test_verbs_give_the_same_results_on_one_and_two_processes(
    two: Path, launch: Callable[..., Attempt]
):
    losses, texts, exported = [], [], []
    for processes in (1, 2):
        outputs = outputs_of(launch, two, processes)
        losses.append(float(outputs["eval"].split()[2].rstrip(",")))
        texts.append(outputs["sample"])
        path = Path(outputs["export"].strip())
        # Compare tensors, not files: safetensors writes metadata in a random order.
        exported.append({name: array.tobytes() for name, array in load_file(path).items()})
        path.unlink()
        assert outputs["bench"].startswith(f"{processes} x cpu: ")
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)
    assert texts[0] == texts[1]
    assert exported[0] == exported[1]


DIVERGE = """
import numpy as np
from train.run import metrics

class Value:
    def __init__(self, value, ready):
        self.value, self.ready = value, ready
    def is_ready(self):
        return self.ready
    def __array__(self, *args, **kwargs):
        return np.asarray(self.value) * (np.nan if self.step >= 20 else 1)

def add(self, step, values, heldout_loss=None, add=metrics.InFlight.add):
    value = Value(values["loss"], READY)
    value.step = step
    add(self, step, values | {"loss": value}, heldout_loss)

metrics.InFlight.add = add
if not READY:
    metrics.InFlight._allowed = lambda self: metrics.MAX_IN_FLIGHT
"""


@pytest.mark.parametrize("every", [24, 1_000_000], ids=["before-a-save", "far-from-a-save"])
def test_processes_that_see_a_divergence_at_different_calls_end_together(
    launch: Callable[..., Attempt], tmp_path: Path, every: int
):
    """Process 0 gets the metrics of a step immediately, process 1 as late as allowed."""
    patch = "import os\nREADY = os.environ.get('TPUFLEET_PROCESS_ID') == '0'\n" + DIVERGE
    (tmp_path / "sitecustomize.py").write_text(patch)
    environment = {"PYTHONPATH": f"{tmp_path}:{PROJECT}"}
    overrides = [*OVERRIDES, "steps=1000000", f"checkpoint.every={every}"]
    attempt = launch(tmp_path, overrides, environment=environment)
    assert attempt.codes() == [NOT_A_NUMBER, NOT_A_NUMBER], attempt.logs()
    assert attempt.logs().count("step 20: loss, gradient or parameters are not finite") == 2
    assert [step for step, loss in loss_log(tmp_path / "w0") if loss is None] == [20]
