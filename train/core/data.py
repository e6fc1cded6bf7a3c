"""Batches of sequences of a prepared corpus, computed from the seed and the step alone.

There is no iterator state to save. Any process can compute any row of any step's batch, so a
resumed run gets the same batches, and losses do not depend on the number of processes.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from train.core.config import Config, ConfigError
from train.data.corpus import Meta, fingerprint_of, read_meta, read_tokenizer
from train.data.mixture import Schedule, heldout_shares, in_order
from train.data.sequences import JoinedText, PackedDocuments


class Corpus:
    """The prepared corpora of a run, whose files are memory-mapped."""

    def __init__(self, paths: Sequence[Path], cfg: Config) -> None:
        """Open the prepared corpora; ``paths`` are their directories.

        Raises ConfigError if one is shorter than one sequence or does not fit the config,
        CorpusError if its files are damaged.
        """
        self.metas: list[Meta] = [read_meta(path) for path in paths]
        """Descriptions of the corpora: several only for a mixture."""
        metas = self.metas
        self.name = "+".join(meta.name for meta in metas)
        self.fingerprint = fingerprint_of(metas, cfg.data.weights)
        # All corpora have the same tokenizer, but only conversations have a chat template. So read
        # the tokenizer from a corpus of conversations, if there is one.
        chat = next((i for i, meta in enumerate(metas) if meta.documents == "chat"), 0)
        self.tokenizer = read_tokenizer(paths[chat], metas[chat])
        self._length = cfg.model.context + 1  # the last token is predicted, but is no input
        vocabulary = max(meta.vocabulary for meta in metas)
        if cfg.model.vocabulary < vocabulary:
            raise ConfigError(
                f"model.vocabulary: must be at least {vocabulary}, the vocabulary size of "
                f"data.tokenizer ({cfg.data.tokenizer}), not {cfg.model.vocabulary}"
            )
        for meta in metas:
            if meta.train < self._least(meta):
                raise ConfigError(
                    f"data: {meta.name} has {meta.train} tokens to train on and {meta.heldout} "
                    f"held out, but one sequence needs {self._least(meta)}. Use more data, a "
                    "smaller model.context or a smaller data.heldout"
                )
        if cfg.evaluate.every:
            self.check_heldout(", or set evaluate.every=0")
        if not len(self.tokenizer.encode(cfg.sample.prompt)):
            raise ConfigError(
                f"sample.prompt: {cfg.sample.prompt!r} has no tokens with data.tokenizer "
                f"({cfg.data.tokenizer}). Set another prompt"
            )
        shape = (self.tokenizer.dtype, self._length, cfg.seed)
        self.sources: list[JoinedText | PackedDocuments] = [
            JoinedText(path, *shape, cfg.batch, cfg.data.is_packed)
            if meta.documents == "joined"
            else PackedDocuments(path, *shape)
            for path, meta in zip(paths, metas, strict=True)
        ]
        self._weights, self._batch = cfg.data.weights, cfg.batch
        self._schedule = Schedule(cfg.data.weights, cfg.seed)

    def check_heldout(self, otherwise: str = "") -> None:
        """Raise ConfigError unless each source has enough held-out tokens for one sequence.

        ``otherwise`` is appended to the message "... Hold out more", to name an alternative fix.
        """
        for meta in self.metas:
            if meta.heldout < self._least(meta):
                raise ConfigError(
                    f"data.heldout: {meta.name} has {meta.heldout} tokens held out, fewer than one "
                    f"sequence of {self._least(meta)}. Hold out more{otherwise}"
                )

    def _least(self, meta: Meta) -> int:
        """Return the least number of tokens that a corpus needs for one sequence."""
        return self._length if meta.documents == "joined" else 2

    def rows(self, step: int, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Return the sequences of a step's batch that have the indices ``rows``, as int32.

        Their shape is (n, context + 1), or (n, 4, context + 1) if any source has packed documents
        (data/sequences.py). Steps count from 0.
        """
        within = np.arange(self._batch)[rows]
        source_of, numbers = self._schedule.locate(step * self._batch + within)
        source_rows = [
            source.rows(step, within[source_of == i], numbers[source_of == i])
            for i, source in enumerate(self.sources)
        ]
        return in_order(source_of, source_rows)

    def heldout_rows(self, count: int, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Space ``count`` sequences evenly over the held-out text; return those at ``rows``.

        The sequences are the same in every call, and have the shape that the method ``rows``
        describes. In a mixture, each source has its share of the sequences.
        """
        source_of, numbers, counts = heldout_shares(self._weights, count)
        source_of, numbers = source_of[rows], numbers[rows]
        source_rows = [
            source.heldout(numbers[source_of == i], int(counts[i]))
            for i, source in enumerate(self.sources)
        ]
        return in_order(source_of, source_rows)
