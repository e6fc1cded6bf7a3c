"""A run whose device takes several steps by itself logs, evaluates and resumes as any other."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.trainer_processes import loss_log, read_metrics, train_here
from train import contract
from train.config import Config, ConfigError, build
from train.corpus import prepare
from train.data import Corpus


def by_calls(cfg: Config, **changes: object) -> Config:
    """Ten steps a call: 25 steps are three calls, the last of them a short one."""
    return replace(cfg, steps=25, compute=replace(cfg.compute, steps_per_call=10), **changes)


@pytest.fixture(scope="module")
def evaluated(finished_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("evaluated")
    cfg = by_calls(
        finished_config,
        evaluate=replace(finished_config.evaluate, every=10, batches=2),
        sample=replace(finished_config.sample, every=20),
    )
    logger, lines = logging.getLogger("train"), logging.FileHandler(directory / "log")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        assert train_here(cfg, directory) == contract.DONE
    finally:
        logger.removeHandler(lines)
        lines.close()
    return directory


def test_its_losses_are_those_of_single_steps_and_every_one_is_logged(
    evaluated: Path, finished: Path
):
    single, together = loss_log(finished)[:25], loss_log(evaluated)
    assert [step for step, _ in together] == [step for step, _ in single]
    np.testing.assert_allclose(
        [loss for _, loss in together], [loss for _, loss in single], rtol=1e-4
    )


def test_the_held_out_loss_stands_with_the_steps_that_were_evaluated(evaluated: Path):
    seen = {line["step"]: line.get("heldout_loss") for line in read_metrics(evaluated)}
    assert {step for step, loss in seen.items() if loss is not None} == {10, 20}
    assert seen[20] < seen[10] < np.log(128)
    assert f"step 20/25 held-out loss {seen[20]:.4f}" in (evaluated / "log").read_text()


def test_a_passage_is_written_on_the_way_and_at_the_end(evaluated: Path):
    lines = (evaluated / "log").read_text().splitlines()
    assert [line for line in lines if line.endswith(" writes:")] == [
        "step 20 writes:",
        "step 25 writes:",
    ]


def test_held_out_windows_are_the_same_whoever_reads_how_many(finished_config: Config):
    corpus = Corpus(prepare(finished_config.data), finished_config)
    rows = corpus.heldout_rows(8)
    np.testing.assert_array_equal(corpus.heldout_rows(8, slice(2, 5)), rows[2:5])
    trained_on = bytes(corpus.tokens)
    assert all(bytes(row.astype(np.uint8)) not in trained_on for row in rows)


@pytest.mark.parametrize("key", ["checkpoint", "evaluate", "sample"])
def test_what_is_due_within_a_call_is_refused(key: str):
    tree = {section: {"every": 20} for section in ("checkpoint", "evaluate", "sample")}
    tree[key] = {"every": 15}
    with pytest.raises(ConfigError) as error:
        build(tree | {"compute": {"steps_per_call": 10}})
    assert f"{key}.every: must be a multiple of compute.steps_per_call (10), not 15" in str(
        error.value
    )


def test_held_out_text_shorter_than_a_window_cannot_be_evaluated(
    make_config: Callable[..., Config],
):
    cfg = make_config(data={"heldout": 0}, evaluate={"every": 10})
    with pytest.raises(ConfigError, match="has 0 tokens held out, fewer than one window of 33"):
        Corpus(prepare(cfg.data), cfg)
