"""The run contract: environment, heartbeat and metrics."""

import errno
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from harness.trainer_processes import loss_log
from train.core.config import Config, ConfigError
from train.run import contract
from train.run import metrics as metrics_module
from train.run.contract import HEARTBEAT_SECONDS, Heartbeat, check_writable, from_environment
from train.run.metrics import MAX_IN_FLIGHT, InFlight, Metrics, MetricsLog

FLEET = {
    "TPUFLEET_RUN": "r",
    "TPUFLEET_RUN_DIR": "/runs/r",
    "TPUFLEET_CHECKPOINTS": "/shared/r",
    "TPUFLEET_COORDINATOR": "10.0.0.1:8476",
    "TPUFLEET_NUM_PROCESSES": "4",
    "TPUFLEET_PROCESS_ID": "3",
}


def test_the_contract_is_read_from_the_environment():
    run_contract = from_environment(FLEET, "c.yml", Config())
    assert run_contract == contract.Contract(
        "r", Path("/runs/r"), Path("/shared/r"), "10.0.0.1:8476", 4, 3
    )


def test_without_a_fleet_the_run_directory_is_named_after_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    run_contract = from_environment({}, "configs/small.yml", Config())
    assert (run_contract.run, run_contract.num_processes, run_contract.coordinator) == (
        "small",
        1,
        "",
    )
    assert run_contract.checkpoints == tmp_path / "runs" / "small" / "checkpoints"


def test_the_fleet_s_checkpoints_override_the_config_s(make_config: Callable[..., Config]):
    cfg = make_config(checkpoint={"directory": "/mine"})
    assert from_environment(FLEET, "c.yml", cfg).checkpoints == Path("/shared/r")
    assert from_environment({}, "c.yml", cfg).checkpoints == Path("/mine")
    in_a_bucket = FLEET | {"TPUFLEET_CHECKPOINTS": "gs://b/r/"}
    assert from_environment(in_a_bucket, "c.yml", cfg).checkpoints == "gs://b/r"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"TPUFLEET_PROCESS_ID": "4"}, r"TPUFLEET_PROCESS_ID: must be .* below .* \(4\), not 4"),
        ({"TPUFLEET_PROCESS_ID": "-1"}, "TPUFLEET_PROCESS_ID: must be a whole number, not '-1'"),
        ({"TPUFLEET_NUM_PROCESSES": "two"}, "TPUFLEET_NUM_PROCESSES: must be a whole number"),
        ({"TPUFLEET_COORDINATOR": ""}, "TPUFLEET_COORDINATOR: must be host:port for 4 processes"),
        ({"TPUFLEET_CHECKPOINTS": "s3://b/r"}, "must be a path or gs://.*, not s3://b/r"),
        ({"TPUFLEET_CHECKPOINTS": "gs://"}, "must be a path or gs://bucket/name, not gs://"),
        ({"TPUFLEET_CHECKPOINTS": "gs:///r"}, "must be a path or gs://bucket/name, not gs:///r"),
        ({"TPUFLEET_COORDINATOR": "leader"}, "TPUFLEET_COORDINATOR: must be host:port, not"),
    ],
)
def test_an_invalid_environment_is_refused(changes: dict[str, str], message: str):
    with pytest.raises(ConfigError, match=message):
        from_environment(FLEET | changes, "c.yml", Config())


@pytest.mark.parametrize("name", ["run_dir", "checkpoints"])
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, name: str):
    (tmp_path / "file").write_text("")
    directories = {"run_dir": tmp_path / "a", "checkpoints": tmp_path / "b"}
    directories[name] = tmp_path / "file" / "below"
    with pytest.raises(ConfigError, match="/file/below: cannot be written: Not a directory"):
        check_writable(contract.Contract("r", **directories))


def test_a_heartbeat_contains_the_process_s_progress(tmp_path: Path):
    heartbeat = Heartbeat(tmp_path, steps=9)
    heartbeat.write("starting")
    beat = json.loads(heartbeat.path.read_text())
    assert (beat["step"], beat["start_step"], beat["state"]) == (None, None, "starting")
    heartbeat.start_step = 3
    heartbeat._written -= HEARTBEAT_SECONDS
    heartbeat.progress(4, 2.5, 100.0, 0.4, lambda: {"device_bytes": 7})
    beat = json.loads(heartbeat.path.read_text())
    assert beat.pop("time") > 0
    assert beat == {
        "step": 4,
        "start_step": 3,
        "steps": 9,
        "loss": 2.5,
        "tokens_per_second": 100.0,
        "mfu": 0.4,
        "device_bytes": 7,
        "state": "running",
    }


def test_heartbeats_are_written_at_most_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = [50.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[-1])
    heartbeat = Heartbeat(tmp_path, steps=9)
    steps = []
    for step, seconds in enumerate([50.0, 50.5, 50.9, 51.0, 51.1], start=1):
        clock.append(seconds)
        heartbeat.progress(step, 2.5, None)
        steps.append(json.loads(heartbeat.path.read_text())["step"])
    assert steps == [1, 1, 1, 4, 4]
    heartbeat.write("done")
    beat = json.loads(heartbeat.path.read_text())
    assert (beat["step"], beat["state"]) == (5, "done")
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat.json"]


VALUES = ("loss", "grad_norm", "param_norm", "lr")
"""Names of the arrays that a training call returns."""


def metrics(step: int) -> Metrics:
    loss = 1 / (3 * step)
    return Metrics(step, loss, 100.0 + step, None if step == 1 else 10.0, 1e-3, 0.5, 7.0)


def test_metrics_are_written_with_full_precision(tmp_path: Path):
    log = MetricsLog(tmp_path / "metrics.jsonl", 0)
    for step in (1, 2, 3):
        log.write(metrics(step))
    assert loss_log(tmp_path) == [(step, metrics(step).loss) for step in (1, 2, 3)]


def test_nan_is_written_as_null(tmp_path: Path):
    nan = float("nan")
    Heartbeat(tmp_path, steps=9).progress(4, nan, None)
    MetricsLog(tmp_path / "metrics.jsonl", 0).write(Metrics(4, nan, 100.0, None, 1e-3, nan, nan))
    for name in ("heartbeat.json", "metrics.jsonl"):
        written = (tmp_path / name).read_text()
        assert "NaN" not in written
        assert json.loads(written)["loss"] is None


@pytest.mark.parametrize("rest", ["", '{"step": 4, "lo', "\0\0\0\n", "[]\n", "{}\n"])
def test_resuming_removes_later_steps_and_incomplete_lines(tmp_path: Path, rest: str):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, 0)
    for step in (1, 2, 3):
        log.write(metrics(step))
    with path.open("a") as file:
        file.write(rest)
    MetricsLog(path, 2).write(metrics(3))
    assert [step for step, _ in loss_log(tmp_path)] == [1, 2, 3]
    assert len(path.read_text().splitlines()) == 3


def test_waiting_for_steps_in_flight_returns_all_of_them_in_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics_module, "mfu", lambda rate, _: rate / 1000)
    in_flight = InFlight(Config())
    for step in range(1, 3 * MAX_IN_FLIGHT):
        in_flight.add(step, dict.fromkeys(VALUES, jnp.full(1, step, "f")))
    finished = list(in_flight.finished(wait=True))
    assert (
        [m.step for m in finished]
        == [m.loss for m in finished]
        == list(range(1, 3 * MAX_IN_FLIGHT))
    )
    assert finished[0].tokens_per_second is finished[0].mfu is None
    assert all(m.mfu == m.tokens_per_second / 1000 > 0 for m in finished[1:])


class SlowDevice:
    """Fake device on which each call takes ``seconds``.

    It is also the test's clock; its time advances only while a result is awaited.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.busy_until = seconds, 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def call(self) -> Any:
        self.busy_until = max(self.busy_until, self.now) + self.seconds
        return SlowArray(self, self.busy_until)


@dataclass(frozen=True)
class SlowArray:
    device: SlowDevice
    ready_at: float

    def is_ready(self) -> bool:
        return self.device.now >= self.ready_at

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self.device.now = max(self.device.now, self.ready_at)
        return np.ones(1, dtype)


@pytest.mark.parametrize(
    ("seconds", "limit"), [(0.001, MAX_IN_FLIGHT), (0.5, 4), (0.9, 2), (5.0, 1), (60.0, 1)]
)
def test_calls_in_flight_are_limited_by_their_time_and_keep_the_device_busy(
    monkeypatch: pytest.MonkeyPatch, seconds: float, limit: int
):
    device = SlowDevice(seconds)
    monkeypatch.setattr(metrics_module, "time", device)
    in_flight, unfinished, idle = InFlight(Config()), [], 0.0
    for step in range(1, 40):
        idle += max(0.0, device.now - device.busy_until)
        in_flight.add(step, dict.fromkeys(VALUES, device.call()))
        list(in_flight.finished())
        unfinished.append(round((device.busy_until - device.now) / seconds))
    assert max(unfinished) == unfinished[-1] == limit
    assert idle == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["loss", "grad_norm", "param_norm"])
def test_nan_or_infinity_makes_a_step_not_finite(key: str, bad: float):
    values = {"step": 1, "loss": 1.0, "time": 1.0, "tokens_per_second": None, "lr": 1.0}
    values |= {"grad_norm": 1.0, "param_norm": 1.0}
    assert Metrics(**values).finite
    assert not Metrics(**values | {key: bad}).finite


def test_an_unwritable_heartbeat_causes_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("")
    heartbeat = Heartbeat(tmp_path / "file", steps=9)
    for state in ("starting", "running", "failed"):
        heartbeat.write(state)
    assert [message.partition(": ")[0] for message in caplog.messages] == [str(heartbeat.path)]


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_unwritable_metrics_cause_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    log = MetricsLog(tmp_path / "metrics.jsonl", 0)
    monkeypatch.setattr(log, "_file", FullDisk())
    for step in (1, 2, 3):
        assert log.write(metrics(step))["step"] == step
    [message] = caplog.messages
    assert "metrics.jsonl: cannot be written: No space left on device" in message
