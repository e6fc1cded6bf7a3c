"""Packed documents: each is learned once per epoch, and affects no other document."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trainer_processes import Attempt, loss_log, read_metrics, train_here
from tests.train.fixed_sequences import mean_loss
from train.core import model, step
from train.core.config import Config, ConfigError, build
from train.core.data import Corpus
from train.data.corpus import prepare, prepare_all, read_meta, read_tokenizer
from train.data.mixture import Schedule
from train.data.packing import pack
from train.data.sequences import LEARNED, POSITIONS, SEGMENTS, TOKENS
from train.data.texts import CorpusError
from train.run import contract

WORDS = ["king", "feast", "crown", "love", "come", "all"]
TEXTS = [" ".join(WORDS[: 1 + i % 6]) + str(i) for i in range(60)] + ["long " * 30]


def json_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lines")
    return json_lines(directory / "words.jsonl", [{"text": text} for text in TEXTS])


@pytest.fixture(scope="module")
def packed_tree(tree: dict, lines: Path) -> dict:
    return tree | {
        "data": {
            "text": str(lines),
            "documents": "packed",
            "tokenizer": "bytes",
            "directory": str(lines.parent / "data"),
        },
        # Fewer parameters compile faster; compilation takes most of the time.
        "model": {
            "layers": 1,
            "heads": 2,
            "width": 32,
            "context": 48,
            "vocabulary": 256,
            "norm": "rms",
            "attention_bias": False,
            "feedforward_bias": False,
        },
        "evaluate": {"every": 0, "batches": 1},
    }


@pytest.fixture(scope="module")
def cfg(packed_tree: dict) -> Config:
    return build(packed_tree)


@pytest.fixture(scope="module")
def corpus(cfg: Config) -> Corpus:
    return Corpus(prepare_all(cfg.data), cfg)


def documents(row: np.ndarray) -> list[np.ndarray]:
    """Return the tokens of each document of a packed sequence."""
    numbers = range(1, row[SEGMENTS].max() + 1)
    return [row[TOKENS][row[SEGMENTS] == number] for number in numbers]


@given(
    lengths=st.lists(st.integers(1, 40), max_size=300),
    capacity=st.integers(40, 100),
)
def test_pack_respects_the_capacity_and_needs_few_sequences(lengths: list[int], capacity: int):
    sequence_of = pack(np.array(lengths, np.int64), capacity)
    filled = np.bincount(sequence_of, lengths).astype(int)
    assert (filled <= capacity).all()
    assert (filled > 0).all()
    # Best fit decreasing needs at most about 11/9 of the optimal number of sequences. The optimum
    # is unknown, so compare with total length / capacity, which is close for short documents.
    assert len(filled) <= 11 / 9 * -(-sum(lengths) // capacity) + 1 or max(lengths) > capacity / 3


def test_each_document_is_learned_once_per_epoch(corpus: Corpus, cfg: Config):
    [meta] = corpus.metas
    text = np.fromfile(prepare(cfg.data) / "train.bin", np.uint8)
    expected = bytes(text).decode().split("\n\n")[:-1]
    count = len(corpus.sources[0]._train)
    for epoch in range(2):
        rows = [
            corpus.sources[0].rows(0, np.zeros(1), np.array([epoch * count + i]))[0]
            for i in range(count)
        ]
        learned = sum(int(row[LEARNED].sum()) for row in rows)
        observed = sorted(
            bytes(d.astype(np.uint8)).decode() for row in rows for d in documents(row)
        )
        assert learned == meta.train - len(expected)  # each document's first token is not learned
        assert {text for text in observed if text.endswith("\n\n") and "long" not in text} == {
            f"{text}\n\n" for text in expected if "long" not in text
        }


def test_epochs_have_different_orders_and_seeds_different_sequences(corpus: Corpus, cfg: Config):
    source, count = corpus.sources[0], len(corpus.sources[0]._train)
    first, second = (source.rows(0, None, np.arange(count) + e * count) for e in (0, 1))
    assert (first != second).any()
    other = Corpus(prepare_all(cfg.data), replace(cfg, seed=1))
    assert (other.rows(0) != corpus.rows(0)).any()


def test_positions_restart_and_the_first_token_of_a_document_is_not_learned(corpus: Corpus):
    for row in corpus.rows(0):
        starts = np.flatnonzero(np.diff(row[SEGMENTS], prepend=0) > 0)
        assert len(starts) > 0
        assert not row[POSITIONS][starts].any()
        assert not row[LEARNED][starts].any()
        inside = np.diff(row[SEGMENTS]) == 0
        assert (np.diff(row[POSITIONS])[inside] == 1).all()
        assert not row[LEARNED][row[SEGMENTS] == 0].any()


def test_a_document_longer_than_a_sequence_is_divided_and_each_token_learned_once(
    packed_tree: dict, tmp_path: Path
):
    text = "".join(chr(97 + i % 26) for i in range(200))
    path = json_lines(tmp_path / "one.jsonl", [{"text": text}])
    cfg = build(packed_tree | {"data": packed_tree["data"] | {"text": str(path), "heldout": 0}})
    corpus = Corpus(prepare_all(cfg.data), cfg)
    rows = corpus.sources[0].rows(0, None, np.arange(len(corpus.sources[0]._train)))
    learned = [bytes(r[TOKENS][r[LEARNED] > 0].astype(np.uint8)).decode() for r in rows]
    assert len(learned) > 4
    assert sorted("".join(learned)) == sorted((text + "\n\n")[1:])


@pytest.mark.parametrize(
    ("positions", "attention"),
    [("learned", "plain"), ("learned", "blocks"), ("rotary", "splash")],
)
def test_documents_have_the_same_loss_packed_and_alone(
    corpus: Corpus, cfg: Config, positions: str, attention: str
):
    cfg = replace(cfg, model=replace(cfg.model, positions=positions, kv_heads=1))
    params = jax.jit(model.init_params, static_argnums=1)(jax.random.key(0), cfg.model)
    # Enlarge the parameters: with the small initial ones, attention hardly affects the loss.
    params = {name: 5 * a for name, a in params.items()}
    row = max(corpus.rows(0), key=lambda row: row[SEGMENTS].max())
    alone = [(float(mean_loss(params, d[None], cfg)), len(d) - 1) for d in documents(row)]
    assert len(alone) > 1
    expected = np.average([loss for loss, _ in alone], weights=[count for _, count in alone])
    other = replace(cfg, compute=replace(cfg.compute, attention=attention))
    assert float(mean_loss(params, row[None], other)) == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module")
def run_cfg(packed_tree: dict) -> Config:
    """The config of a run that also computes the held-out loss."""
    evaluate = {"every": 20, "batches": 1}
    changes = {"evaluate": evaluate, "checkpoint": {"every": 10}, "sample": {"length": 0}}
    return build(packed_tree | changes | {"steps": 40})


@pytest.fixture(scope="module")
def alone(run_cfg: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a finished run with one process, on packed documents."""
    directory, mesh = tmp_path_factory.mktemp("alone"), jax.sharding.get_mesh()
    assert train_here(run_cfg, directory) == contract.DONE
    jax.set_mesh(mesh)
    return directory


def test_losses_do_not_depend_on_microbatches_and_chunks(
    alone: Path, corpus: Corpus, cfg: Config, no_mesh: None
):
    parts = replace(cfg, compute=replace(cfg.compute, accumulate=4, loss_chunks=4))
    state = jax.jit(step.fresh_state, static_argnums=0)(parts)
    observed = []
    for i in range(2):
        batches = corpus.rows(i).reshape(step.batch_shape(parts, 1, 1))
        state, values = step.update(state, batches, parts)
        observed += values["loss"].tolist()
    np.testing.assert_allclose(observed, [loss for _, loss in loss_log(alone)[:2]], rtol=2e-6)


def test_a_run_on_packed_documents_learns_and_evaluates(alone: Path):
    lines = read_metrics(alone)
    assert lines[-1]["loss"] < lines[0]["loss"] - 1
    assert lines[-1]["heldout_loss"] < lines[19]["heldout_loss"]


def test_a_run_resumed_with_another_number_of_processes_has_the_same_losses(
    packed_tree: dict,
    run_cfg: Config,
    alone: Path,
    tmp_path: Path,
    launch: Callable[..., Attempt],
    no_mesh: None,
):
    data = packed_tree["data"]
    overrides = [f"data={json.dumps(data)}", f"model={json.dumps(packed_tree['model'])}"]
    overrides += ["sample.length=0", "checkpoint.every=10", "steps=10"]
    attempt = launch(tmp_path, overrides, environment={"TPUFLEET_RUN": "alone"})
    assert attempt.codes() == [contract.DONE] * 2, attempt.logs()
    assert train_here(run_cfg, tmp_path) == contract.DONE
    observed, expected = loss_log(tmp_path / "w0") + loss_log(tmp_path), loss_log(alone)
    assert [step for step, _ in observed] == list(range(1, 41))
    # Two processes add numbers in a different order than one process, so losses differ in the last
    # bits. Each step increases the difference, so later steps have a larger tolerance.
    for steps, rtol in ((slice(20), 1e-5), (slice(20, 40), 1e-3)):
        np.testing.assert_allclose(
            [loss for _, loss in observed[steps]], [loss for _, loss in expected[steps]], rtol=rtol
        )


def test_sigterm_during_the_preparation_leaves_no_partial_corpus(
    packed_tree: dict, tmp_path: Path, launch: Callable[..., Attempt]
):
    text = json_lines(tmp_path / "many.jsonl", [{"text": "who is come " * 9}] * 300_000)
    prepared = tmp_path / "data"
    prepared.mkdir()
    data = packed_tree["data"] | {"text": str(text), "directory": str(prepared)}
    overrides = [f"data={json.dumps(data)}", f"model={json.dumps(packed_tree['model'])}"]
    attempt = launch(tmp_path, overrides, processes=1)
    attempt.wait_for(lambda: any(prepared.rglob("train.bin")))
    attempt.signal(0, signal.SIGTERM)
    assert attempt.codes() == [-signal.SIGTERM], attempt.logs()
    assert not list(prepared.iterdir())


def test_held_out_documents_are_whole_and_not_trained_on(corpus: Corpus, cfg: Config):
    directory = prepare(cfg.data)
    tokenizer = read_tokenizer(directory, read_meta(directory))
    held = tokenizer.decode(np.fromfile(directory / "heldout.bin", np.uint8))
    assert held.endswith(TEXTS[-1] + "\n\n")
    train = tokenizer.decode(np.fromfile(directory / "train.bin", np.uint8))
    assert train + held == "".join(f"{text}\n\n" for text in TEXTS)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", r"words.jsonl:2: is not JSON"),
        ("[1]", r"words.jsonl:2: must be a JSON object, not b'\[1\]"),
        ('{"text": 1}', r"text_key: .*:2 has no text under the key 'text' \(its keys: text\)"),
        ('{"body": "a"}', r"text_key: .*:2 has no text under the key 'text' \(its keys: body\)"),
    ],
)
def test_an_invalid_line_is_refused_with_its_number(
    packed_tree: dict, tmp_path: Path, line: str, error: str
):
    (tmp_path / "words.jsonl").write_text(f'{{"text": "a"}}\n{line}\n')
    cfg = build(
        packed_tree | {"data": packed_tree["data"] | {"text": str(tmp_path / "words.jsonl")}}
    )
    with pytest.raises((ConfigError, CorpusError), match=error):
        prepare(cfg.data)


def test_damaged_files_of_documents_are_refused(packed_tree: dict, tmp_path: Path):
    tree = packed_tree | {"data": packed_tree["data"] | {"directory": str(tmp_path)}}
    directory = prepare(build(tree).data)
    (directory / "train.documents").write_bytes(b"\x01\0\0\0\x01\0\0\0")
    with pytest.raises(CorpusError, match=r"train\.documents: does not match the tokens in train"):
        read_meta(directory)


@given(
    weights=st.lists(st.floats(0.01, 10), min_size=1, max_size=5),
    first=st.integers(0, 10**9),
)
def test_a_mixture_keeps_its_shares_and_skips_no_sequence(weights: list[float], first: int):
    schedule = Schedule(weights, seed=3)
    source_of, numbers = schedule.locate(np.arange(first, first + 20_000))
    for i, weight in enumerate(weights):
        source_numbers = numbers[source_of == i]
        assert np.array_equal(
            source_numbers, np.arange(source_numbers[0], source_numbers[0] + len(source_numbers))
        )
        assert len(source_numbers) / 20_000 == pytest.approx(weight / sum(weights), abs=0.002)


@pytest.fixture
def mixed(packed_tree: dict, text_file: Path, lines: Path) -> Config:
    sources = [
        {"text": str(text_file), "weight": 3},
        {"text": str(lines), "documents": "packed"},
    ]
    data = {k: v for k, v in packed_tree["data"].items() if k not in ("text", "documents")}
    return build(packed_tree | {"data": data | {"mixture": sources}})


def test_rows_of_a_mixture_come_from_its_sources_by_weight(mixed: Config, text_file: Path):
    corpus = Corpus(prepare_all(mixed.data), mixed)
    feast = text_file.read_text()
    rows = np.concatenate([corpus.rows(step) for step in range(200)])
    joined = [bytes(row[TOKENS].astype(np.uint8)).decode() in feast for row in rows]
    assert np.mean(joined) == pytest.approx(0.75, abs=0.03)
    assert corpus.heldout_rows(8).shape == (8, 4, mixed.model.context + 1)
    share = [corpus.rows(5, slice(i, i + 2)) for i in range(0, 8, 2)]
    np.testing.assert_array_equal(np.concatenate(share), corpus.rows(5))


def test_other_weights_change_the_fingerprint_of_a_mixture(mixed: Config):
    sources = (replace(mixed.data.mixture[0], weight=2.0), mixed.data.mixture[1])
    other = replace(mixed, data=replace(mixed.data, mixture=sources))
    first, second = (Corpus(prepare_all(cfg.data), cfg) for cfg in (mixed, other))
    assert first.fingerprint != second.fingerprint


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"mixture": [{"text": "a"}], "text": "b"}, "data: mixture replaces corpus, text, "),
        ({"mixture": "a"}, "data.mixture: must be a list of mappings, not str 'a'"),
        ({"mixture": [{"weight": 0}]}, r"data.mixture\[0\].weight: must be a number above 0"),
        (
            {"mixture": [{"wait": 1}]},
            r"data.mixture\[0\].wait: unknown key; allowed here: corpus, ",
        ),
        (
            {"mixture": [{"text": "a", "dataset": {"id": "b"}}]},
            "data: text and dataset.id are both",
        ),
        ({"mixture": [{"text": "a"}], "tokenizer": "bpe"}, "data.tokenizer: bpe is trained on one"),
        ({"documents": "chat", "tokenizer": "bpe"}, "data.tokenizer: bpe is trained on one text"),
        ({"documents": "whole"}, "data.documents: must be joined or packed or chat, not str"),
    ],
)
def test_contradictory_sources_are_refused_in_one_line(data: dict, error: str):
    with pytest.raises(ConfigError, match=f"^config: {error}"):
        build({"data": data})
