"""Files of tokens of a prepared corpus, written from text.

A corpus of whole documents (``data.documents`` other than ``joined``) has further files::

    <split>.documents   for each document, two uint32: its number of tokens, and the index of the
                        first learned one
    <split>.learned     1 for each token that is learned, otherwise 0; only for conversations
"""

import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, groupby
from pathlib import Path

import numpy as np

from train.data.chat import ChatTemplate, parse
from train.data.texts import CHUNK_CHARACTERS, Source
from train.data.tokens import Tokenizer
from train.strict import ConfigError

BATCH_CHARACTERS = CHUNK_CHARACTERS * max(16, os.cpu_count() or 1)
"""Characters that are encoded at once, in parallel: one chunk per CPU core, at least 16 chunks."""

LENGTHS = np.dtype("<u4")


type Document = tuple[np.ndarray, np.ndarray | None]
"""Tokens of a document, and a mask of the tokens that the model learns to predict; without a mask
(None), it learns all tokens except the first."""


def write_joined(path: Path, text: Source, tokenizer: Tokenizer) -> None:
    """Write the tokens of all documents to a file, with separators between documents."""
    separator = np.concatenate([tokenizer.end, tokenizer.begin])
    # A separator has fixed tokens, so it is not encoded: in chunks, None stands for it.
    chunks = (
        chunk
        for i, document in enumerate(text.read())
        for chunk in chain([None] if i else [], document)
    )
    with path.open("wb") as file:
        for batch in _batches(chunks, lambda chunk: len(chunk or "")):
            encoded = iter(tokenizer.encode_all([chunk for chunk in batch if chunk is not None]))
            for chunk in batch:
                tokens = separator if chunk is None else next(encoded)
                file.write(tokens.astype(tokenizer.dtype).tobytes())


def packed(text: Source, tokenizer: Tokenizer) -> Iterator[Document]:
    """Yield the documents of a text, each with the tokenizer's special tokens around it."""
    documents = ("".join(document) for document in text.read())
    for batch in _batches(documents, len):
        for tokens in tokenizer.encode_all(batch):
            yield np.concatenate([tokenizer.begin, tokens, tokenizer.end]), None


def conversations(text: Source, tokenizer: Tokenizer, template: ChatTemplate) -> Iterator[Document]:
    """Yield the conversations of a text; only the assistant's messages are learned.

    Raises ConfigError for plain text, CorpusError for a row that is not a conversation.
    """
    if text.rows is None:
        raise ConfigError(f"data.documents: chat needs JSON lines or a dataset, not {text.name}")
    texts = (spans for row in text.rows() for spans in template.spans(parse(row), row.origin))
    for batch in _batches(texts, lambda spans: sum(len(span.text) for span in spans)):
        for tokens, learned in tokenizer.encode_marked(batch):
            learned[:1] = False  # the first token has no context to predict it from
            yield tokens, learned


def write_documents(
    directory: Path, documents: Iterable[Document], tokenizer: Tokenizer, have_masks: bool
) -> None:
    """Write ``train.bin``, ``train.documents`` and, with ``have_masks``, ``train.learned``."""
    lengths = array("I")
    masks_file = (directory / "train.learned").open("wb") if have_masks else nullcontext()
    with (directory / "train.bin").open("wb") as tokens_file, masks_file:
        for tokens, learned in documents:
            first = 1
            if learned is not None:
                masks_file.write(learned.astype(np.uint8).tobytes())
                learned_indices = np.flatnonzero(learned)
                first = int(learned_indices[0]) if len(learned_indices) else len(tokens)
            tokens_file.write(tokens.astype(tokenizer.dtype).tobytes())
            lengths.extend((len(tokens), first))
    np.array(lengths, LENGTHS).tofile(directory / "train.documents")


def split_heldout(directory: Path, fraction: float, width: int) -> tuple[int, int]:
    """Move the last tokens of ``train.*`` to ``heldout.*``; return their new token counts.

    ``fraction`` is the share of the tokens to move. A corpus of whole documents is split between
    documents, so a larger share may be moved.
    """
    count = (directory / "train.bin").stat().st_size // width
    heldout = int(count * fraction)
    documents = directory / "train.documents"
    if documents.exists():
        lengths = np.fromfile(documents, LENGTHS)[::2].astype(np.int64)
        ends = np.cumsum(lengths[::-1])
        moved = int(np.searchsorted(ends, count * fraction)) + 1 if fraction and len(ends) else 0
        heldout = int(ends[moved - 1]) if moved else 0
        _move_end(directory, "documents", moved * 2 * LENGTHS.itemsize)
    if (directory / "train.learned").exists():
        _move_end(directory, "learned", heldout)
    _move_end(directory, "bin", heldout * width)
    return count - heldout, heldout


def _move_end(directory: Path, kind: str, size: int) -> None:
    """Move the last ``size`` bytes from train.<kind> to heldout.<kind>."""
    with (directory / f"train.{kind}").open("r+b") as file:
        start = file.seek(0, 2) - size
        file.seek(start)
        (directory / f"heldout.{kind}").write_bytes(file.read())
        file.truncate(start)


def _batches[T](items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the items in lists of about BATCH_CHARACTERS; ``size`` counts an item's characters."""
    total = 0

    def number(item: T) -> int:
        nonlocal total
        total += size(item)
        return total // BATCH_CHARACTERS

    for _, batch in groupby(items, number):
        yield list(batch)
