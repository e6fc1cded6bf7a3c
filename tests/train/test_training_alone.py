"""Runs with one process: the files that they write, resumption, samples, and config errors."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from harness.trainer_processes import loss_log, read_metrics, restored_here, train_here
from train.core.config import ComputeConfig, Config, ConfigError
from train.core.data import Corpus
from train.core.model import init_params
from train.data.corpus import prepare_all
from train.run import contract, loop
from train.run.checkpoint import Checkpoints
from train.run.contract import Contract, Heartbeat
from train.run.loop import Run
from train.run.sample import CALL_TOKENS, complete, generate
from train.run.watchdog import Watchdog


@pytest.fixture
def cfg(finished_config: Config) -> Config:
    return finished_config


def test_the_loss_decreases_from_that_of_a_uniform_guess(finished: Path):
    losses = [loss for _, loss in loss_log(finished)]
    assert losses[0] == pytest.approx(np.log(128), abs=0.1)
    assert np.mean(losses[-5:]) < 3


def test_every_step_is_logged_once_with_all_metrics(finished: Path):
    records = read_metrics(finished)
    assert [record["step"] for record in records] == list(range(1, 41))
    assert all(
        {"step", "loss", "time", "tokens_per_second", "lr"} <= record.keys() for record in records
    )
    assert [record["step"] for record in records if "start_seconds" in record] == [1]
    assert [record["step"] for record in records if "save_seconds" in record] == [11, 21, 31]
    assert all(record.get("save_seconds", 1) > 0 for record in records)


def test_the_watchdog_is_on_until_all_saves_are_complete(
    cfg: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    order = []
    for kind, name in ((Checkpoints, "close"), (Watchdog, "off")):
        monkeypatch.setattr(kind, name, lambda _, name=name: order.append(name))
    assert train_here(cfg, tmp_path) == contract.DONE
    assert order == ["close", "off"]


def test_a_finished_run_has_its_last_checkpoints_and_a_final_heartbeat(finished: Path):
    beat = json.loads((finished / "heartbeat.json").read_text())
    assert (beat["step"], beat["steps"], beat["state"]) == (40, 40, "done")
    steps = sorted(int(path.name) for path in (finished / "checkpoints").glob("[0-9]*"))
    assert steps == [30, 40]


def test_the_sample_has_the_configured_length(finished: Path, cfg: Config):
    text = (finished / "sample.txt").read_text()
    assert text.startswith(cfg.sample.prompt)
    assert len(text) == len(cfg.sample.prompt) + cfg.sample.length + 1


def test_the_last_checkpoint_generates_the_same_sample(finished: Path, cfg: Config):
    run_contract = Contract("alone", finished, finished / "checkpoints")
    corpus = Corpus(prepare_all(cfg.data), cfg)
    params = restored_here(cfg, run_contract)
    assert generate(params, cfg, corpus.tokenizer) + "\n" == (finished / "sample.txt").read_text()


def test_a_sample_ends_at_its_time_limit(finished: Path, cfg: Config):
    corpus = Corpus(prepare_all(cfg.data), cfg)
    params = restored_here(cfg, Contract("alone", finished, finished / "checkpoints"))
    text = generate(params, cfg, corpus.tokenizer, limit_seconds=0)
    assert cfg.sample.length > CALL_TOKENS
    assert len(text) == len(cfg.sample.prompt) + CALL_TOKENS


@pytest.mark.parametrize("broken", ["generate", "write_atomically"])
def test_a_sample_that_fails_is_logged_and_the_run_is_done(
    cfg: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
):
    def fail(*_: Any) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(loop, broken, fail)
    assert train_here(cfg, tmp_path) == contract.DONE
    assert json.loads((tmp_path / "heartbeat.json").read_text())["state"] == "done"
    failed = (
        "step 40: the sample failed, which does not end the run: RuntimeError: RESOURCE_EXHAUSTED"
    )
    assert failed in caplog.text


@pytest.mark.usefixtures("no_mesh")
def test_a_sample_uses_the_dtype_and_computes_logits_of_one_position(cfg: Config):
    model, compute = replace(cfg.model, vocabulary=200), ComputeConfig(dtype="bfloat16")
    half = replace(cfg, model=model, compute=compute)
    params = jax.eval_shape(lambda: init_params(jax.random.key(0), model))
    inputs = (params, (np.zeros(32, np.int32), np.int32(1)), 0, jax.random.key(0), 0.8)
    program = str(jax.make_jaxpr(complete, static_argnums=5)(*inputs, half))
    assert model.context == model.width == 32
    assert "bf16[1,32,32]" in program
    assert "f32[1,1,200]" in program
    assert "f32[1,32,200]" not in program


def test_starting_a_finished_run_changes_nothing(finished: Path, cfg: Config):
    before = (finished / "metrics.jsonl").read_bytes()
    assert train_here(cfg, finished) == contract.DONE
    assert (finished / "metrics.jsonl").read_bytes() == before
    beat = json.loads((finished / "heartbeat.json").read_text())
    assert (beat["step"], beat["state"]) == (40, "done")


def test_a_resumed_run_writes_its_start_step_before_training(
    finished: Path, cfg: Config, tmp_path: Path
):
    shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")
    longer = replace(cfg, steps=50)
    run_contract = Contract("alone", tmp_path, tmp_path / "checkpoints")
    Run(longer, run_contract, Corpus(prepare_all(cfg.data), longer), Heartbeat(tmp_path, 50))
    beat = json.loads((tmp_path / "heartbeat.json").read_text())
    assert (beat["step"], beat["start_step"], beat["steps"]) == (None, 40, 50)


def test_a_run_killed_before_its_sample_generates_it_at_the_next_start(finished: Path, cfg: Config):
    passage_there = (finished / "sample.txt").read_bytes()
    (finished / "sample.txt").unlink()
    assert train_here(cfg, finished) == contract.DONE
    assert (finished / "sample.txt").read_bytes() == passage_there


def test_a_checkpoint_of_another_model_is_refused(
    finished: Path, make_config: Callable[..., Config]
):
    with pytest.raises(ConfigError, match=r"/40: .*: model\.layers is 1 there, but 2 in this"):
        train_here(make_config(model={"layers": 2}), finished)


def test_a_checkpoint_of_another_corpus_is_refused(
    finished: Path, make_config: Callable[..., Config], tmp_path: Path
):
    (tmp_path / "other.txt").write_text("all the world's a stage\n" * 100)
    with pytest.raises(ConfigError, match=r"/40: .*: corpus is \w{12} there, but \w{12} in"):
        train_here(make_config(data={"text": str(tmp_path / "other.txt")}), finished)


def test_a_run_without_a_checkpoint_cannot_be_sampled(cfg: Config, tmp_path: Path):
    run_contract = Contract("alone", tmp_path, tmp_path / "checkpoints")
    with pytest.raises(ConfigError, match="checkpoints: has no checkpoint yet"):
        restored_here(cfg, run_contract)


def test_a_diverged_run_ends_without_a_save_even_if_its_last_loss_is_finite(
    make_config: Callable[..., Config], tmp_path: Path
):
    cfg = make_config(optimizer={"learning_rate": 1e38, "warmup": 0}, checkpoint={"every": 1})
    assert train_here(cfg, tmp_path) == contract.NOT_A_NUMBER
    assert [step for step, loss in loss_log(tmp_path) if loss is not None] == [1]
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))
    assert json.loads((tmp_path / "heartbeat.json").read_text())["state"] == "nan"


def test_a_batch_that_does_not_divide_over_the_devices_is_refused(
    make_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jax, "devices", lambda: 3 * jax.local_devices())
    with pytest.raises(ConfigError, match=r"batch: .* number of devices \(3\), not 8"):
        train_here(make_config(), tmp_path)
