"""Batches follow from (seed, step), and processes can read their rows separately."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.config import Config, ConfigError
from train.corpus import prepare
from train.data import Corpus


@pytest.fixture(scope="module")
def corpus(tree: dict) -> Corpus:
    from train.config import build

    cfg = build(tree)
    return Corpus(prepare(cfg.data), cfg)


@given(step=st.integers(0, 10**9))
def test_a_step_s_batch_is_the_same_every_time(corpus: Corpus, step: int):
    np.testing.assert_array_equal(corpus.rows(step), corpus.rows(step))


@given(step=st.integers(0, 10**6), parts=st.sampled_from([1, 2, 4, 8]))
def test_rows_of_all_processes_form_the_whole_batch(corpus: Corpus, step: int, parts: int):
    share = corpus.batch // parts
    rows = [corpus.rows(step, slice(i * share, (i + 1) * share)) for i in range(parts)]
    np.testing.assert_array_equal(np.concatenate(rows), corpus.rows(step))


@given(step=st.integers(0, 10**6))
def test_every_row_is_a_substring_of_the_training_text(corpus: Corpus, step: int):
    text = bytes(corpus.tokens)
    for row in corpus.rows(step):
        assert bytes(row.astype(np.uint8)) in text


def test_two_steps_and_two_seeds_give_different_batches(make_config: Callable[..., Config]):
    cfg, other = make_config(), make_config(seed=1)
    directory = prepare(cfg.data)
    one, two = Corpus(directory, cfg), Corpus(directory, other)
    assert (one.rows(0) != one.rows(1)).any()
    assert (one.rows(0) != two.rows(0)).any()
    assert (one.rows(1) != two.rows(0)).any()


def test_the_last_sequence_of_the_text_can_be_drawn(make_config: Callable[..., Config]):
    cfg = make_config()
    length = Corpus(prepare(cfg.data), cfg).meta.train
    corpus = Corpus(prepare(cfg.data), make_config(model={"context": length - 2}, batch=64))
    ends = corpus.rows(0)[:, -1]
    assert set(ends) == {corpus.tokens[-1], corpus.tokens[-2]}


def test_a_text_shorter_than_a_sequence_is_refused(make_config: Callable[..., Config]):
    cfg = make_config(model={"context": 10**6})
    with pytest.raises(ConfigError, match=r"feast has \d+ tokens .* sequence of 1000001"):
        Corpus(prepare(cfg.data), cfg)


def test_a_vocabulary_too_small_for_the_corpus_is_refused(make_config: Callable[..., Config]):
    cfg = make_config(model={"vocabulary": 100})
    with pytest.raises(ConfigError, match=r"model\.vocabulary: must be at least .* 128 .* not 100"):
        Corpus(prepare(cfg.data), cfg)
