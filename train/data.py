"""Batches: windows of a prepared corpus, chosen by (seed, step) alone.

There is no iterator and nothing to save: any process can make any row of any step's batch, so a
run goes on where it stopped, and what it learns doesn't depend on how many processes share it.
"""

from pathlib import Path

import numpy as np

from train.config import Config, ConfigError
from train.corpus import Meta, read_meta, read_tokenizer


class Corpus:
    """The tokens of a prepared corpus, mapped into memory."""

    def __init__(self, directory: Path, cfg: Config) -> None:
        """Open a prepared corpus.

        Raises ConfigError where it is shorter than one window or the vocabulary doesn't hold it,
        CorpusError where its files are damaged.
        """
        self.meta: Meta = read_meta(directory)
        self.tokenizer = read_tokenizer(directory, self.meta)
        self.window = cfg.model.context + 1
        """Tokens in a window: what the model sees, and the one after it."""
        if cfg.model.vocabulary < self.meta.vocabulary:
            raise ConfigError(
                f"model.vocabulary: must be at least the corpus's {self.meta.vocabulary} "
                f"(data.tokenizer: {cfg.data.tokenizer}), not {cfg.model.vocabulary}"
            )
        if self.meta.train < self.window:
            raise ConfigError(
                f"data: {self.meta.name} has {self.meta.train} tokens to train on, fewer than one "
                f"window of {self.window} (model.context and the next token)"
            )
        if cfg.evaluate.every and self.meta.heldout < self.window:
            raise ConfigError(
                f"data.heldout: {self.meta.name} has {self.meta.heldout} tokens held out, fewer "
                f"than one window of {self.window} to evaluate; hold out more, or set "
                "evaluate.every=0"
            )
        if not len(self.tokenizer.encode(cfg.sample.prompt)):
            raise ConfigError(
                f"sample.prompt: {cfg.sample.prompt!r} is no token at all by data.tokenizer "
                f"({cfg.data.tokenizer}); write a word"
            )
        self.tokens = np.memmap(directory / "train.bin", self.tokenizer.dtype, mode="r")
        self._heldout = directory / "heldout.bin"
        self.seed, self.batch = cfg.seed, cfg.batch

    def rows(self, step: int, rows: slice = slice(None)) -> np.ndarray:
        """Return rows of step ``step``'s batch: int32 of shape (rows, context + 1).

        ``step`` counts from 0. Each window starts anywhere, all starts alike likely. Philox
        (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") is keyed by
        (seed, step), so that no two steps share a stream.
        """
        generator = np.random.Generator(np.random.Philox(key=[self.seed, step]))
        starts_b = generator.integers(len(self.tokens) - self.window + 1, size=self.batch)[rows]
        return self.tokens[starts_b[:, None] + np.arange(self.window)].astype(np.int32)

    def heldout_rows(self, count: int, rows: slice = slice(None)) -> np.ndarray:
        """Return rows of ``count`` windows spread evenly over the held-out text, always the same.

        int32 of shape (rows, context + 1); where there is little text they overlap.
        """
        tokens = np.memmap(self._heldout, self.tokenizer.dtype, mode="r")
        starts_b = np.linspace(0, len(tokens) - self.window, count).astype(np.int64)[rows]
        return tokens[starts_b[:, None] + np.arange(self.window)].astype(np.int32)
