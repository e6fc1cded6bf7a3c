"""Batches of sequences of a prepared corpus, computed from the seed and the step alone.

There is no iterator state to save. Any process can compute any row of any step's batch, so a
resumed run gets the same batches, and losses do not depend on the number of processes.
"""

from pathlib import Path

import numpy as np

from train.config import Config, ConfigError
from train.corpus import Meta, read_meta, read_tokenizer


class Corpus:
    """A prepared corpus, memory-mapped."""

    def __init__(self, directory: Path, cfg: Config) -> None:
        """Open a prepared corpus.

        Raises ConfigError if it is shorter than one sequence or does not fit the config,
        CorpusError if its files are damaged.
        """
        self.meta: Meta = read_meta(directory)
        self.tokenizer = read_tokenizer(directory, self.meta)
        self.sequence_length = cfg.model.context + 1
        """Tokens per sequence: the context plus one, because the last token is only a target."""
        if cfg.model.vocabulary < self.meta.vocabulary:
            raise ConfigError(
                f"model.vocabulary: must be at least the corpus's {self.meta.vocabulary} "
                f"(data.tokenizer: {cfg.data.tokenizer}), not {cfg.model.vocabulary}"
            )
        if self.meta.train < self.sequence_length:
            raise ConfigError(
                f"data: {self.meta.name} has {self.meta.train} tokens to train on, fewer than one "
                f"sequence of {self.sequence_length} (model.context + 1)"
            )
        if cfg.evaluate.every and self.meta.heldout < self.sequence_length:
            raise ConfigError(
                f"data.heldout: {self.meta.name} has {self.meta.heldout} tokens held out, fewer "
                f"than one sequence of {self.sequence_length}; hold out more, or set "
                "evaluate.every=0"
            )
        if not len(self.tokenizer.encode(cfg.sample.prompt)):
            raise ConfigError(
                f"sample.prompt: {cfg.sample.prompt!r} has no tokens with data.tokenizer "
                f"({cfg.data.tokenizer}); write a word"
            )
        self.tokens = np.memmap(directory / "train.bin", self.tokenizer.dtype, mode="r")
        self._heldout = directory / "heldout.bin"
        self.seed, self.batch = cfg.seed, cfg.batch

    def rows(self, step: int, rows: slice = slice(None)) -> np.ndarray:
        """Return rows of a step's batch: int32 (rows, context + 1). Steps count from 0.

        Sequences start at uniformly random positions of the corpus. The generator, Philox (Salmon
        et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), is keyed by (seed, step), so
        that no two steps share a stream.
        """
        generator = np.random.Generator(np.random.Philox(key=[self.seed, step]))
        starts_b = generator.integers(len(self.tokens) - self.sequence_length + 1, size=self.batch)[
            rows
        ]
        return self.tokens[starts_b[:, None] + np.arange(self.sequence_length)].astype(np.int32)

    def heldout_rows(self, count: int, rows: slice = slice(None)) -> np.ndarray:
        """Return ``rows`` of ``count`` sequences spaced evenly over the held-out text.

        The result is int32 (rows, context + 1), the same in every call. Sequences of a short text
        overlap.
        """
        tokens = np.memmap(self._heldout, self.tokenizer.dtype, mode="r")
        starts_b = np.linspace(0, len(tokens) - self.sequence_length, count).astype(np.int64)[rows]
        return tokens[starts_b[:, None] + np.arange(self.sequence_length)].astype(np.int32)
