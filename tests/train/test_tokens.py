"""Tokenizers: round trips, reproducible training, invalid files."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trainer_processes import PROJECT
from tests.train.conftest import SENTENCE
from train.core.config import ConfigError
from train.data import tokens

TEXTS = [SENTENCE, f"all who come\n{SENTENCE}\n", "not caf\u00e9 nor \u4e16"] * 9


@pytest.fixture(scope="module")
def bpe() -> tokens.Tokenizer:
    return tokens.from_definition(tokens.train_bpe(TEXTS, 300))


@given(st.text())
def test_every_text_becomes_ascii(text: str):
    assert all(tokens.BUILT_IN["ascii"].encode(text) < 128)


@given(st.text(st.characters(max_codepoint=127, exclude_characters="\r")))
def test_ascii_text_round_trips(text: str):
    tokenizer = tokens.BUILT_IN["ascii"]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("caf\u00e9", "cafe"),
        ("\u201cAy,\u201d quoth he \u2014 \u2018tis", '"Ay," quoth he -- \'tis'),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("\u4e16", "?"),
    ],
)
def test_other_characters_become_their_ascii_equivalents(text: str, plain: str):
    assert tokens.to_ascii(text) == plain


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_round_trips_through_bytes(text: str):
    tokenizer = tokens.BUILT_IN["bytes"]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_round_trips_through_a_trained_encoding(bpe: tokens.Tokenizer, text: str):
    assert bpe.decode(bpe.encode(text)) == text


@given(st.text(st.characters(categories=["Cs", "L"])))
def test_lone_surrogates_become_question_marks(bpe: tokens.Tokenizer, text: str):
    expected = text.encode(errors="replace").decode()
    assert bpe.decode(bpe.encode(text)) == expected
    assert bpe.decode(bpe.encode_all([text])[0]) == expected
    assert bpe.decode(bpe.encode_marked([[(text, True), (text, False)]])[0][0]) == 2 * expected


def test_truncation_and_padding_in_a_tokenizer_file_are_ignored(bpe: tokens.Tokenizer):
    import tokenizers

    encoding = tokenizers.Tokenizer.from_str(bpe.definition.decode())
    encoding.enable_truncation(4)
    encoding.enable_padding(length=1000)
    limited = tokens.from_definition(encoding.to_str().encode())
    for text in TEXTS:
        np.testing.assert_array_equal(limited.encode(text), bpe.encode(text))
    for token_ids, text in zip(limited.encode_all(TEXTS), TEXTS, strict=True):
        np.testing.assert_array_equal(token_ids, bpe.encode(text))


@pytest.mark.parametrize(
    ("vocabulary", "kind"),
    [(256, np.uint8), (257, np.uint16), (65536, np.uint16), (65537, np.uint32)],
)
def test_tokens_use_the_smallest_type_for_the_vocabulary(vocabulary: int, kind: type):
    assert replace(tokens.BUILT_IN["ascii"], vocabulary=vocabulary).dtype is kind


def test_another_process_trains_the_same_encoding():
    program = (
        "import sys; from tests.train.test_tokens import TEXTS; from train.data import tokens\n"
    )
    program += "sys.stdout.buffer.write(tokens.train_bpe(TEXTS, 300))"
    other = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
    )
    assert other.stdout == tokens.train_bpe(TEXTS, 300)


def test_tokens_outside_the_vocabulary_decode_to_empty_text(bpe: tokens.Tokenizer):
    assert bpe.decode([*bpe.encode("come"), bpe.vocabulary + 3]) == "come"


def test_documents_are_separated_by_the_end_of_text_token_or_an_empty_line(bpe: tokens.Tokenizer):
    assert bpe.decode(bpe.end) == tokens.END_OF_TEXT
    utf8 = tokens.BUILT_IN["bytes"]
    assert utf8.decode(utf8.end) == "\n\n"


@pytest.mark.parametrize("content", ["", "{}", "[1]", "word", json.dumps({"model": {}})])
def test_an_invalid_tokenizer_file_is_reported_in_one_line(tmp_path: Path, content: str):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ConfigError) as error:
        tokens.read_file(path)
    assert str(error.value).startswith(f"data.tokenizer: {path} is not a tokenizer.json: ")
    assert "\n" not in str(error.value)


def test_a_missing_tokenizer_is_refused_with_the_allowed_values(tmp_path: Path):
    with pytest.raises(
        ConfigError, match=r"must be ascii, bytes, bpe or a readable tokenizer\.json, .*b.json"
    ):
        tokens.read_file(tmp_path / "b.json")


@pytest.mark.parametrize("beside", [None, "{}"])
@pytest.mark.parametrize("has_end", [False, True])
def test_a_tokenizer_without_an_end_token_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, beside: str | None, has_end: bool
):
    definition = tokens.train_bpe(TEXTS, 300).decode()
    if not has_end:
        definition = definition.replace(tokens.END_OF_TEXT, "<|begin|>")
    (tmp_path / tokens.FILE).write_text(definition)
    if beside:
        (tmp_path / tokens.SETTINGS).write_text(beside)
    tokens.read_file(tmp_path / tokens.FILE)
    assert bool(caplog.messages) == (not has_end and beside is None)
    assert all("documents end with an empty line" in message for message in caplog.messages)
