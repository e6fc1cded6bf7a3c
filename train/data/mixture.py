"""Mixtures of sources: a sequence's number and the seed determine its source."""

from collections.abc import Sequence

import numpy as np

from train.data.sequences import random_generator

PERIOD = 10_000
"""Number of sequences after which the order of sources repeats; shares are exact to 0.01 %."""


def in_order(source_of: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    """Merge the rows of all sources: row j is the next unused row of source ``source_of[j]``."""
    result = np.empty((len(source_of), *rows[0].shape[1:]), np.int32)
    for i, source_rows in enumerate(rows):
        result[source_of == i] = source_rows
    return result


def heldout_shares(
    weights: Sequence[float], count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide ``count`` held-out sequences among the sources, in proportion to their weights.

    Returns three arrays: each sequence's source, each sequence's number within that source, and the
    number of sequences of each source.
    """
    ends = np.cumsum(weights) / np.sum(weights)
    source_of = np.searchsorted(ends, (np.arange(count) + 0.5) / count)
    counts = np.bincount(source_of, minlength=len(weights))
    return source_of, np.arange(count) - (np.cumsum(counts) - counts)[source_of], counts


class Schedule:
    """The source of each sequence of a run.

    The number of sequences from a source is in proportion to its weight.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        """Draw the source of each of about PERIOD sequences from ``seed``.

        Later sequences repeat this order.
        """
        ends = np.rint(np.cumsum(weights) / np.sum(weights) * PERIOD).astype(np.int64)
        counts = np.maximum(1, np.diff(ends, prepend=0))
        in_turn = np.repeat(np.arange(len(counts)), counts)
        self._sources = random_generator(seed, 0, 3).permutation(in_turn)
        self._before = np.empty_like(self._sources)
        for source in range(len(counts)):
            is_source = self._sources == source
            self._before[is_source] = np.arange(counts[source])
        self._counts = counts

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each sequence's source, and the number of earlier sequences of that source."""
        periods, indices = np.divmod(numbers, len(self._sources))
        sources = self._sources[indices]
        return sources, periods * self._counts[sources] + self._before[indices]
