"""Losses do not depend on the number of processes; all processes must have the same config."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from harness.trainer_processes import Attempt, loss_log, train_here
from tests.train.diverging import NAN_STEP, Diverging
from train.__main__ import main
from train.core.config import Config, build
from train.run import loop
from train.run.contract import BAD_CONFIG, DONE, HUNG, NOT_A_NUMBER
from train.run.metrics import MAX_IN_FLIGHT

LLAMA = {
    "norm": "rms",
    "positions": "rotary",
    "activation": "swiglu",
    "attention_bias": False,
    "feedforward_bias": False,
}
"""Model options with few parameters, because compilation takes most of the time."""
MODEL = [f"model.{name}={json.dumps(value)}" for name, value in LLAMA.items()]
OVERRIDES = [*MODEL, "sample.length=0", "checkpoint.keep=null", "checkpoint.every=20"]
SHARDED = ["steps=45", "compute.fsdp=null"]
LONG = ["steps=1000000", "compute.fsdp=null"]
"""A run with the compiled step of SHARDED, which never finishes."""


@pytest.fixture(scope="module")
def alone(tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a finished run with one process and the model options LLAMA."""
    directory = tmp_path_factory.mktemp("alone")
    cfg = build(tree | {"model": tree["model"] | LLAMA, "sample": {"length": 0}})
    assert train_here(cfg, directory) == DONE
    return directory


@pytest.fixture(scope="module")
def two(launch: Callable[..., Attempt], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of two processes."""
    directory = tmp_path_factory.mktemp("two")
    attempt = launch(directory, [*OVERRIDES, *SHARDED])
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    return directory


def test_two_processes_have_the_losses_of_one(two: Path, alone: Path):
    expected, together = loss_log(alone), loss_log(two / "w0")[:40]
    assert [step for step, _ in expected] == [step for step, _ in together]
    # Two processes add numbers in a different order than one process, so losses differ in the last
    # bits. Each step increases the difference, so later steps have a larger tolerance.
    np.testing.assert_allclose(
        [loss for _, loss in together[:20]], [loss for _, loss in expected[:20]], rtol=1e-5
    )
    np.testing.assert_allclose(
        [loss for _, loss in together], [loss for _, loss in expected], rtol=1e-3
    )


def test_checkpoints_have_no_array_metadata_files(two: Path):
    assert [path.name for path in two.glob("checkpoints/*/state")]
    assert not list(two.glob("checkpoints/**/array_metadatas"))


def test_a_run_resumed_on_four_devices_has_the_same_losses(
    launch: Callable[..., Attempt], two: Path, tmp_path: Path
):
    checkpoint = Path("checkpoints") / "40"
    shutil.copytree(two / checkpoint, tmp_path / checkpoint)
    overrides = [*OVERRIDES, "steps=45", "compute.fsdp=4", "sample.length=8"]
    attempt = launch(tmp_path, overrides, environment={"JAX_NUM_CPU_DEVICES": "2"})
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    assert "process 1 of 2, 4 cpu device(s)" in attempt.logs()
    assert (tmp_path / "w0" / "sample.txt").exists()
    observed, expected = loss_log(tmp_path / "w0"), loss_log(two / "w0")[40:]
    assert [step for step, _ in observed] == [step for step, _ in expected]
    np.testing.assert_allclose(
        [loss for _, loss in observed], [loss for _, loss in expected], rtol=1e-5
    )


def test_only_one_process_reads_a_replicated_state(
    launch: Callable[..., Attempt], two: Path, tmp_path: Path
):
    checkpoint = Path("checkpoints") / "45"
    for directory in (tmp_path, tmp_path / "w1"):
        shutil.copytree(two / checkpoint, directory / checkpoint)
    data = [path for path in (tmp_path / "w1").rglob("d/*") if path.is_file()]
    assert data
    for path in data:
        path.unlink()
    attempt = launch(tmp_path, [*OVERRIDES, "steps=45"], own_checkpoints=1)
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    assert attempt.logs().count("already at step 45 of 45") == 2


def test_all_processes_refuse_different_configs(launch: Callable[..., Attempt], tmp_path: Path):
    attempt = launch(tmp_path, process_overrides={1: ["seed=1"]})
    assert attempt.codes() == [BAD_CONFIG, BAD_CONFIG], attempt.logs()
    assert "processes 1 have a different config or corpus than process 0" in attempt.logs()
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))


def test_all_processes_refuse_different_checkpoints(
    launch: Callable[..., Attempt], alone: Path, tmp_path: Path
):
    shutil.copytree(alone / "checkpoints", tmp_path / "checkpoints")
    attempt = launch(tmp_path, MODEL, own_checkpoints=1, environment={"TPUFLEET_RUN": "alone"})
    assert attempt.codes() == [BAD_CONFIG, BAD_CONFIG], attempt.logs()
    assert "processes 1 do not find the files of process 0 in" in attempt.logs()


def test_a_hanging_run_logs_its_stacks_and_exits(launch: Callable[..., Attempt], tmp_path: Path):
    attempt = launch(tmp_path, [*OVERRIDES, *LONG, "hang_after=3"])
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
    """Split a log of tests.train.reading_verbs, from character ``start`` on, at each verb.

    Returns the text before the first verb, then the name and the output of each verb.
    """
    lines = log.read_text()[start:].splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("[Gloo]"))
    return re.split(r"^--- (\w+)\n", text, flags=re.MULTILINE)


VERB_OVERRIDES = [*MODEL, *SHARDED, "sample.length=20", "sample.temperature=0"]


def outputs_of_two_processes(launch: Callable[..., Attempt], run: Path) -> dict[str, str]:
    """Run the verbs in two processes and return their outputs; check that only process 0 prints."""
    logs = [run / f"w{i}" / "log" for i in range(2)]
    before = [len(log.read_text()) for log in logs]
    attempt = launch(run, VERB_OVERRIDES, program=("tests.train.reading_verbs",))
    assert attempt.codes() == [DONE, DONE], attempt.logs()
    first, second = map(printed, logs, before)
    assert not any(second[::2])
    return dict(zip(first[1::2], first[2::2], strict=True))


@pytest.fixture
def outputs_of_one_process(
    two: Path,
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> dict[str, str]:
    """Outputs of the verbs in the test's own process, on the run that two processes trained."""
    monkeypatch.setenv("TPUFLEET_RUN_DIR", str(two / "w0"))
    monkeypatch.setenv("TPUFLEET_CHECKPOINTS", str(two / "checkpoints"))
    outputs = {}
    for verb in ("eval", "sample", "export"):
        assert main([verb, str(config_file), *VERB_OVERRIDES]) == DONE
        outputs[verb] = capsys.readouterr().out
    return outputs


def exported(output: str) -> dict[str, bytes]:
    """Return the tensors of an exported file, whose path is ``output``, and delete the file.

    Files can't be compared, because safetensors writes their metadata in a random order.
    """
    path = Path(output.strip())
    tensors = {name: array.tobytes() for name, array in load_file(path).items()}
    path.unlink()
    return tensors


def test_verbs_give_the_same_results_on_one_and_two_processes(
    two: Path, launch: Callable[..., Attempt], outputs_of_one_process: dict[str, str]
):
    one, tensors = outputs_of_one_process, exported(outputs_of_one_process["export"])
    both = outputs_of_two_processes(launch, two)
    losses = [float(outputs["eval"].split()[2].rstrip(",")) for outputs in (one, both)]
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)
    assert both["sample"] == one["sample"]
    assert exported(both["export"]) == tensors
    assert both["bench"].startswith("2 x cpu: ")


def test_processes_that_see_a_divergence_at_different_calls_end_before_a_save(
    launch: Callable[..., Attempt], tmp_path: Path
):
    """Process 0 gets a step's metrics immediately, process 1 as late as MAX_IN_FLIGHT allows."""
    overrides = [*OVERRIDES, *LONG, "checkpoint.every=24"]
    attempt = launch(tmp_path, overrides, program=("tests.train.diverging",))
    assert attempt.codes() == [NOT_A_NUMBER, NOT_A_NUMBER], attempt.logs()
    assert attempt.logs().count("step 20: loss, gradient or parameters are not finite") == 2
    assert [step for step, loss in loss_log(tmp_path / "w0") if loss is None] == [20]


@pytest.mark.parametrize("is_immediate", [True, False])
def test_far_from_a_save_a_diverged_process_ends_at_the_same_call_however_late_it_sees_it(
    make_config: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_immediate: bool,
):
    monkeypatch.setattr(loop, "InFlight", Diverging)
    monkeypatch.setattr(Diverging, "is_immediate", is_immediate)
    cfg = make_config(steps=1_000_000, model=LLAMA, checkpoint={"every": 1_000_000})
    assert train_here(cfg, tmp_path) == NOT_A_NUMBER
    assert loss_log(tmp_path)[-1] == (NAN_STEP, None)
    assert Diverging.last == NAN_STEP + MAX_IN_FLIGHT
