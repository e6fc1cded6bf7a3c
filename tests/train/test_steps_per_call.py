"""Runs with several steps per call log, evaluate and sample like other runs."""

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.trainer_processes import loss_log, read_metrics, train_here
from train.core.config import Config, ConfigError
from train.core.data import Corpus
from train.data.corpus import prepare_all
from train.run import contract


def by_calls(cfg: Config, **changes: object) -> Config:
    """Return a config of 21 steps that are trained in calls of 10, 10 and 1 steps."""
    return replace(cfg, steps=21, compute=replace(cfg.compute, steps_per_call=10), **changes)


@pytest.fixture(scope="module")
def evaluated(finished_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("evaluated")
    cfg = by_calls(
        finished_config,
        evaluate=replace(finished_config.evaluate, every=10, batches=2),
        sample=replace(finished_config.sample, every=1),
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


def test_losses_equal_those_of_single_steps_and_every_step_is_logged(
    evaluated: Path, finished: Path
):
    single, together = loss_log(finished)[:21], loss_log(evaluated)
    assert [step for step, _ in together] == [step for step, _ in single]
    np.testing.assert_allclose(
        [loss for _, loss in together], [loss for _, loss in single], rtol=1e-4
    )


def test_evaluated_steps_have_a_held_out_loss(evaluated: Path):
    heldout_losses = {line["step"]: line.get("heldout_loss") for line in read_metrics(evaluated)}
    assert {step for step, loss in heldout_losses.items() if loss is not None} == {10, 20}
    assert heldout_losses[20] < heldout_losses[10] < np.log(128)
    assert f"step 20/21 held-out loss {heldout_losses[20]:.4f}" in (evaluated / "log").read_text()


def test_samples_are_logged_during_the_run_and_at_its_end(evaluated: Path):
    lines = (evaluated / "log").read_text().splitlines()
    assert [line for line in lines if line.startswith("sample at ")] == [
        "sample at step 10:",
        "sample at step 20:",
        "sample at step 21:",
    ]


def test_a_run_extended_from_an_odd_step_is_evaluated_at_the_same_steps(
    evaluated: Path, finished_config: Config, tmp_path: Path
):
    directory = shutil.copytree(evaluated, tmp_path / "extended")
    evaluate = replace(finished_config.evaluate, every=10, batches=2)
    longer = replace(by_calls(finished_config, evaluate=evaluate), steps=31)

    assert train_here(longer, directory) == contract.DONE

    assert "heldout_loss" in read_metrics(directory)[29]


def test_held_out_sequences_do_not_depend_on_the_rows_read(finished_config: Config):
    corpus = Corpus(prepare_all(finished_config.data), finished_config)
    rows = corpus.heldout_rows(8)
    np.testing.assert_array_equal(corpus.heldout_rows(8, slice(2, 5)), rows[2:5])
    trained_on = bytes(corpus.sources[0].tokens)
    assert all(bytes(row.astype(np.uint8)) not in trained_on for row in rows)


def test_held_out_text_shorter_than_a_sequence_cannot_be_evaluated(
    make_config: Callable[..., Config],
):
    cfg = make_config(data={"heldout": 0}, evaluate={"every": 10})
    with pytest.raises(ConfigError, match="has 0 tokens held out, fewer than one sequence of 33"):
        Corpus(prepare_all(cfg.data), cfg)
