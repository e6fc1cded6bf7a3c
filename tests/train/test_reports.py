"""Metrics, TensorBoard, W&B and traces; none of them can stop a run."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harness.trainer_processes import PROJECT, Attempt, read_metrics, train_here
from train.core.config import Config, ProfileConfig, ReportConfig
from train.run import contract, metrics, report
from train.run.contract import Contract
from train.run.metrics import Metrics
from train.run.report import Report
from train.run.trace import Tracer


@pytest.fixture
def run_contract(tmp_path: Path) -> Contract:
    return Contract("feast", tmp_path, tmp_path / "checkpoints")


def config_with(**services: str) -> Config:
    return Config(log_every=2, report=ReportConfig(**services))


def step_metrics(step: int, heldout: float | None = None) -> Metrics:
    return Metrics(step, 5.0 - step / 10, 1e9 + step, 100.0, 1e-3, 1.0, 2.0, heldout)


def report_steps(cfg: Config, run_contract: Contract, first: int, last: int) -> None:
    figures = Report(cfg, run_contract, first - 1)
    for step in range(first, last + 1):
        figures.write(step_metrics(step, 4.5 if step == 2 else None))
    figures.close()


def losses_in(directory: Path) -> list[tuple[int, float]]:
    events = EventAccumulator(str(directory)).Reload()
    return [(event.step, round(event.value, 3)) for event in events.Scalars("loss")]


def test_tensorboard_has_every_metric_at_its_step(run_contract: Contract):
    report_steps(config_with(tensorboard="tb"), run_contract, 1, 3)
    assert losses_in(run_contract.run_dir / "tb") == [(1, 4.9), (2, 4.8), (3, 4.7)]
    tags = EventAccumulator(str(run_contract.run_dir / "tb")).Reload().Tags()["scalars"]
    assert {"loss", "heldout_loss", "lr", "grad_norm", "tokens_per_second", "host_bytes"} <= set(
        tags
    )


def test_a_resumed_run_continues_in_its_subdirectory_of_a_shared_tensorboard_directory(
    run_contract: Contract, tmp_path: Path
):
    cfg = config_with(tensorboard=str(tmp_path / "all"))
    report_steps(cfg, run_contract, 1, 4)
    # The name of an event file contains the time in seconds and the process id. Wait, so that the
    # second attempt, in the same process, gets a file of its own.
    time.sleep(1.1)
    report_steps(cfg, run_contract, 3, 5)
    assert losses_in(tmp_path / "all" / "feast") == [(i, round(5 - i / 10, 3)) for i in range(1, 6)]


def test_an_unwritable_tensorboard_directory_causes_one_warning(
    run_contract: Contract, caplog: pytest.LogCaptureFixture
):
    report_steps(config_with(tensorboard="/dev/null/tb"), run_contract, 1, 3)
    assert len(read_metrics(run_contract.run_dir)) == 3
    [message] = caplog.messages
    assert message.startswith(
        "TensorBoard: the run continues without this report: NotADirectoryError: "
    )


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


def test_wandb_without_a_key_warns_and_records_offline_with_one_id(
    run_contract: Contract, no_key: None, caplog: pytest.LogCaptureFixture
):
    cfg = config_with(wandb="trial")
    report_steps(cfg, run_contract, 1, 3)
    report_steps(cfg, run_contract, 4, 5)
    recorded = sorted(run_contract.run_dir.glob("wandb/offline-run-*/*.wandb"))
    assert len(recorded) == 2
    # W&B names these files run-ID.wandb, so both attempts have the same W&B run ID.
    assert len({path.name for path in recorded}) == 1
    messages = [record.message for record in caplog.records if record.name.startswith("train.")]
    assert len(messages) == 2  # each attempt logs one warning
    assert messages[0].startswith(
        f"W&B: no API key; recording offline in {run_contract.run_dir}/wandb. "
    )
    assert "WANDB_API_KEY" in messages[0]
    assert "docs/runs.md" in messages[0]


def test_wandb_in_offline_mode_does_not_mention_a_key(
    run_contract: Contract,
    no_key: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("WANDB_MODE", "offline")
    report_steps(config_with(wandb="trial"), run_contract, 1, 3)
    assert [record for record in caplog.records if record.name.startswith("train.")] == []


def test_wandb_that_fails_or_hangs_does_not_affect_the_run(
    run_contract: Contract, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    answered = Event()

    def refuse(**_: Any) -> None:
        raise RuntimeError("no such entity")

    def hang(**_: Any) -> None:
        answered.wait()

    for init, message in (
        (refuse, "W&B: the run continues without this report: RuntimeError: no such entity"),
        (hang, "W&B has not received the last metrics"),
    ):
        fake = SimpleNamespace(Settings=dict, login=lambda prompt: True, init=init)
        monkeypatch.setitem(sys.modules, "wandb", fake)
        monkeypatch.setattr(report, "CLOSE_TIMEOUT_SECONDS", 0.5)
        caplog.clear()
        report_steps(config_with(wandb="trial"), run_contract, 1, 4)
        assert [record["step"] for record in read_metrics(run_contract.run_dir)] == [1, 2, 3, 4]
        assert caplog.messages[0].startswith(message)
    answered.set()


def test_a_run_exits_even_if_wandb_waits_for_its_service(
    launch: Callable[..., Attempt], tmp_path: Path
):
    (tmp_path / "wandb.py").write_text(
        "import atexit, time\n"
        "Settings = dict\n"
        "atexit.register(time.sleep, 1000)\n"
        "def login(prompt): return True\n"
        "def init(**_): raise RuntimeError('no answer')\n"
    )
    overrides = ["steps=5", "report.wandb=trial", "sample.length=0"]
    path = f"{tmp_path}:{PROJECT}"
    attempt = launch(tmp_path, overrides, processes=1, environment={"PYTHONPATH": path})
    assert attempt.codes() == [contract.DONE], attempt.logs()
    assert "report: RuntimeError: no answer" in attempt.logs()


def test_logged_steps_include_memory(run_contract: Contract):
    report_steps(config_with(), run_contract, 1, 5)
    steps = [
        record["step"] for record in read_metrics(run_contract.run_dir) if "host_bytes" in record
    ]
    assert steps == [2, 4]
    assert metrics.memory()["host_bytes"] > 10e6


def test_device_memory_is_that_of_the_fullest_device(monkeypatch: pytest.MonkeyPatch):
    class Device:
        def __init__(self, used: int) -> None:
            self.used = used

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_in_use": self.used, "peak_bytes_in_use": 9, "bytes_limit": 16}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device(3), Device(5)])
    figures = metrics.memory()
    assert [figures[f"device_{n}"] for n in ("bytes", "peak_bytes", "limit_bytes")] == [5, 9, 16]


def test_a_run_is_traced_by_config_and_by_request_file(
    make_config: Callable[..., Config], tmp_path: Path
):
    cfg = make_config(steps=8, sample={"length": 0})
    cfg = replace(cfg, profile=ProfileConfig(at=5, steps=2))
    (tmp_path / "profile").touch()
    assert train_here(cfg, tmp_path) == contract.DONE
    assert not (tmp_path / "profile").exists()
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == ["step-0", "step-5"]
    assert len(list((tmp_path / "profiles").rglob("*.xplane.pb"))) == 2


def test_a_failing_trace_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(directory: Path) -> None:
        raise RuntimeError("another trace is under way")

    monkeypatch.setattr(jax.profiler, "start_trace", fail)
    tracer = Tracer(tmp_path, ProfileConfig(at=3, steps=2), 0)
    for step in range(6):
        tracer.before(step, {"step": step})
    tracer.close(6, {"step": 6})
    assert caplog.messages == ["no trace at step 3: RuntimeError: another trace is under way"]


def test_a_trace_due_before_the_checkpoint_is_not_repeated(tmp_path: Path):
    tracer = Tracer(tmp_path, ProfileConfig(at=3, steps=2), 4)
    tracer.before(4, {"step": 4})
    assert not (tmp_path / "profiles").exists()
