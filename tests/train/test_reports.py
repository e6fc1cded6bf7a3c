"""Metrics, TensorBoard, W&B, plots and traces; none of them can stop a run."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harness.trainer_processes import read_metrics, train_here
from train import contract, metrics, mirror, plot, report
from train.config import Config, ConfigError, ProfileConfig, ReportConfig
from train.contract import Contract
from train.metrics import Metrics
from train.report import Report
from train.trace import Tracer


@pytest.fixture
def place(tmp_path: Path) -> Contract:
    return Contract("feast", tmp_path, tmp_path / "checkpoints")


def cfg_of(**where: str) -> Config:
    return Config(log_every=2, report=ReportConfig(**where))


def line(step: int, heldout: float | None = None) -> Metrics:
    return Metrics(step, 5.0 - step / 10, 1e9 + step, 100.0, 1e-3, 1.0, 2.0, heldout)


def report_steps(cfg: Config, place: Contract, first: int, last: int) -> None:
    figures = Report(cfg, place, first - 1)
    for step in range(first, last + 1):
        figures.write(line(step, 4.5 if step == 2 else None))
    figures.close(done=True)


def losses_in(directory: Path) -> list[tuple[int, float]]:
    events = EventAccumulator(str(directory)).Reload()
    return [(event.step, round(event.value, 3)) for event in events.Scalars("loss")]


def test_tensorboard_has_every_metric_at_its_step(place: Contract):
    report_steps(cfg_of(tensorboard="tb"), place, 1, 3)
    assert losses_in(place.run_dir / "tb") == [(1, 4.9), (2, 4.8), (3, 4.7)]
    tags = EventAccumulator(str(place.run_dir / "tb")).Reload().Tags()["scalars"]
    assert {"loss", "heldout_loss", "lr", "grad_norm", "tokens_per_second", "host_bytes"} <= set(
        tags
    )


def test_a_resumed_run_continues_in_the_same_tensorboard_directory(place: Contract):
    cfg = cfg_of(tensorboard="tb")
    report_steps(cfg, place, 1, 4)
    time.sleep(1.1)  # event files of one second are told apart by their process alone
    report_steps(cfg, place, 3, 5)
    assert losses_in(place.run_dir / "tb") == [(i, round(5 - i / 10, 3)) for i in range(1, 6)]


def test_a_shared_tensorboard_directory_has_one_subdirectory_per_run(
    place: Contract, tmp_path: Path
):
    report_steps(cfg_of(tensorboard=str(tmp_path / "all")), place, 1, 2)
    assert losses_in(tmp_path / "all" / "feast") == [(1, 4.9), (2, 4.8)]


def test_a_tensorboard_directory_that_cannot_be_written_is_one_warning(
    place: Contract, capfd: pytest.CaptureFixture[str]
):
    report_steps(cfg_of(tensorboard="/dev/null/tb"), place, 1, 3)
    assert len(read_metrics(place.run_dir)) == 3
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("tensorboard: NotADirectoryError: ")
    assert said[0].endswith("the run continues without it")


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


def test_without_a_key_wandb_records_offline_with_one_id(
    place: Contract, no_key: None, capfd: pytest.CaptureFixture[str]
):
    cfg = cfg_of(wandb="trial")
    report_steps(cfg, place, 1, 3)
    report_steps(cfg, place, 4, 5)
    recorded = sorted(place.run_dir.glob("wandb/offline-run-*"))
    assert len({path.name.rpartition("-")[2] for path in recorded}) == 1
    assert all(list(path.glob("*.wandb")) for path in recorded)
    assert "continues without it" not in capfd.readouterr().err


FAKE = """
import time
class Settings:
    def __init__(self, **options): pass
def login(prompt): return True
def init(**options):
    {init}
"""


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ("raise RuntimeError('no such entity')", "wandb: RuntimeError: no such entity"),
        ("time.sleep(600)", ""),
    ],
)
def test_a_failing_or_hanging_wandb_does_not_affect_the_run(
    place: Contract,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    init: str,
    said: str,
):
    (tmp_path / "wandb.py").write_text(FAKE.format(init=init))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(report, "CLOSE_TIMEOUT_SECONDS", 5)
    report_steps(cfg_of(wandb="trial"), place, 1, 4)
    assert [record["step"] for record in read_metrics(place.run_dir)] == [1, 2, 3, 4]
    assert said in capfd.readouterr().err


def test_the_mirror_does_not_import_jax():
    assert not {"jax", "train.model"} & set(vars(mirror))
    source = Path(mirror.__file__).read_text()
    assert "import jax" not in source
    assert "from train" not in source


def test_lines_are_followed_when_they_are_complete(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    more = iter(['ep": 3}\n', '{"step": 4}\n', None])

    def ended() -> bool:
        text = next(more)
        if text is None:
            return True
        with path.open("a") as file:
            file.write(text)
        return False

    assert [record["step"] for record in mirror.follow(path, 1, ended)] == [2, 3, 4]


def test_logged_steps_include_memory(place: Contract):
    report_steps(cfg_of(), place, 1, 5)
    has = [record["step"] for record in read_metrics(place.run_dir) if "host_bytes" in record]
    assert has == [2, 4]
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


@pytest.mark.parametrize(("suffix", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_a_finished_run_plots_its_loss(place: Contract, suffix: str, begins: bytes):
    report_steps(cfg_of(plot=suffix), place, 1, 3)
    assert (place.run_dir / f"loss.{suffix}").read_bytes().startswith(begins)


def test_equal_metrics_give_equal_plots_of_all_runs(tmp_path: Path):
    for name in ("one", "two"):
        report_steps(cfg_of(), Contract(name, tmp_path / name, tmp_path), 1, 4)
    runs, pictures = [tmp_path / "one", tmp_path / "two"], [tmp_path / "a.svg", tmp_path / "b.svg"]
    for picture in pictures:
        plot.draw(runs, picture)
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    alone = tmp_path / "alone.svg"
    plot.draw(runs[:1], alone)
    assert pictures[0].read_text().count("<path") > alone.read_text().count("<path")


@pytest.mark.parametrize(
    ("content", "to", "said"),
    [
        ("", "a.svg", r"metrics\.jsonl: contains no steps yet"),
        ("word\n", "a.svg", r"metrics\.jsonl: cannot be plotted: is damaged"),
        (None, "a.svg", r"metrics\.jsonl: cannot be plotted: No such file"),
        ("", "a.pdf", r"--to: must end in \.svg or \.png, not .*a\.pdf"),
    ],
)
def test_metrics_that_cannot_be_plotted_are_reported(
    tmp_path: Path, content: str | None, to: str, said: str
):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=said):
        plot.draw([tmp_path], tmp_path / to)


def test_without_matplotlib_a_run_warns_with_the_fix_and_succeeds(
    place: Contract, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report_steps(cfg_of(plot="svg"), place, 1, 3)
    [said] = caplog.messages
    assert "loss.svg: could not be plotted: needs the package matplotlib" in said
    assert "set jax_lock to that file" in said
    with pytest.raises(ConfigError, match="needs the package matplotlib"):
        plot.draw([place.run_dir], place.run_dir / "a.png")


def test_a_run_is_traced_by_config_and_by_request_file(
    make_config: Callable[..., Config], tmp_path: Path
):
    cfg = replace(make_config(steps=8), profile=ProfileConfig(at=5, steps=2))
    (tmp_path / "profile").touch()
    assert train_here(cfg, tmp_path) == contract.DONE
    assert not (tmp_path / "profile").exists()
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == ["step-0", "step-5"]
    assert len(list((tmp_path / "profiles").rglob("*.xplane.pb"))) == 2


def test_a_failing_trace_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(place: Path) -> None:
        raise RuntimeError("another trace is under way")

    monkeypatch.setattr(jax.profiler, "start_trace", fail)
    tracer = Tracer(tmp_path, ProfileConfig(at=3, steps=2), 0)
    for step in range(6):
        tracer.before(step, {"step": step})
    tracer.close(6, {"step": 6})
    assert caplog.messages == ["no trace at step 3: another trace is under way"]


def test_a_trace_due_before_the_checkpoint_is_not_repeated(tmp_path: Path):
    tracer = Tracer(tmp_path, ProfileConfig(at=3, steps=2), 4)
    tracer.before(4, {"step": 4})
    assert not (tmp_path / "profiles").exists()


def test_a_mirror_whose_input_ends_at_once_still_sends_every_line(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {i}}}\n' for i in range(1, 4)))
    seen = mirror.follow(tmp_path / "metrics.jsonl", 0, lambda: True)
    assert [record["step"] for record in seen] == [1, 2, 3]
