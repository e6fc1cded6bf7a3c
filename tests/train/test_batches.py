"""Seed and step determine a batch, and processes can read their rows of it separately."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.core import step
from train.core.config import ComputeConfig, Config, build, microbatches
from train.core.data import Corpus
from train.core.sharding import BATCH_AXES
from train.data.corpus import prepare_all


@pytest.fixture(scope="module")
def corpus(tree: dict) -> Corpus:
    cfg = build(tree)
    return Corpus(prepare_all(cfg.data), cfg)


@given(step=st.integers(0, 10**9))
def test_a_step_s_batch_is_the_same_every_time(corpus: Corpus, step: int):
    np.testing.assert_array_equal(corpus.rows(step), corpus.rows(step))


@given(step=st.integers(0, 10**6), processes=st.sampled_from([1, 2, 4, 8]))
def test_rows_of_all_processes_form_the_whole_batch(corpus: Corpus, step: int, processes: int):
    share = len(corpus.rows(step)) // processes
    rows = [corpus.rows(step, slice(i * share, (i + 1) * share)) for i in range(processes)]
    np.testing.assert_array_equal(np.concatenate(rows), corpus.rows(step))


@given(
    share=st.integers(1, 300),
    devices=st.integers(1, 300),
    most=st.integers(1, 300),
)
def test_a_step_has_the_fewest_microbatches_within_the_limit(share: int, devices: int, most: int):
    cfg = Config(batch=share * devices, compute=ComputeConfig(microbatch=most))
    count = microbatches(cfg, devices)
    assert share % count == 0
    assert share / count <= most
    assert not [n for n in range(1, count) if share % n == 0 and share / n <= most]


def test_a_batch_is_split_into_microbatches(make_config: Callable[..., Config], no_mesh: None):
    cfg = make_config(batch=12, compute={"microbatch": 5})
    corpus = Corpus(prepare_all(cfg.data), cfg)
    devices = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), BATCH_AXES)
    sharding = jax.NamedSharding(devices, step.BATCH_SPEC)
    batches = step.training_batches(corpus, 0, 2, cfg, sharding)
    assert batches.shape == (2, 3, 4, cfg.model.context + 1)
    np.testing.assert_array_equal(np.concatenate(batches[1]), corpus.rows(1))


@given(step=st.integers(0, 10**6))
def test_every_row_is_a_substring_of_the_training_text(corpus: Corpus, step: int):
    text = bytes(corpus.sources[0].tokens)
    for row in corpus.rows(step):
        assert bytes(row.astype(np.uint8)) in text


def test_two_steps_and_two_seeds_give_different_batches(make_config: Callable[..., Config]):
    cfg, other = make_config(), make_config(seed=1)
    first, second = (Corpus(prepare_all(config.data), config) for config in (cfg, other))
    assert (first.rows(0) != first.rows(1)).any()
    assert (first.rows(0) != second.rows(0)).any()
    assert (first.rows(1) != second.rows(0)).any()


def test_the_last_sequence_of_the_text_can_be_drawn(make_config: Callable[..., Config]):
    cfg = make_config()
    length = Corpus(prepare_all(cfg.data), cfg).metas[0].train
    corpus = Corpus(prepare_all(cfg.data), make_config(model={"context": length - 2}, batch=64))
    ends = corpus.rows(0)[:, -1]
    assert set(ends) == {corpus.sources[0].tokens[-1], corpus.sources[0].tokens[-2]}
