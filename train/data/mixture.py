"""Mixtures of sources: a sequence's number and the seed determine its source."""

from collections.abc import Sequence

import numpy as np

from train.data.sequences import JoinedText, PackedDocuments, as_packed

PERIOD = 10_000
"""Number of sequences after which the order of sources repeats; shares are exact to 0.01 %."""


class Mixture:
    """Sequences of one or several sources.

    If any source has packed documents, sequences of joined text are returned in the packed form.
    """

    def __init__(
        self,
        sources: Sequence[JoinedText | PackedDocuments],
        weights: Sequence[float],
        seed: int,
        batch: int,
    ) -> None:
        """Mix ``sources`` by ``weights`` in batches of ``batch`` sequences."""
        self.sources, self._batch = sources, batch
        self._schedule = Schedule(weights, seed)
        self._ends = np.cumsum(weights) / np.sum(weights)

    def rows(self, step: int, rows: slice | np.ndarray) -> np.ndarray:
        """Return rows of a step's batch."""
        within = np.arange(self._batch)[rows]
        which, numbers = self._schedule.locate(step * self._batch + within)
        return _in_order(
            which,
            [
                source.rows(step, within[which == i], numbers[which == i])
                for i, source in enumerate(self.sources)
            ],
        )

    def heldout(self, count: int, rows: slice | np.ndarray) -> np.ndarray:
        """Return ``rows`` of ``count`` held-out sequences; each source has its share of them."""
        shares = np.searchsorted(self._ends, (np.arange(count) + 0.5) / count)
        counts = np.bincount(shares, minlength=len(self.sources))
        numbers = (np.arange(count) - (np.cumsum(counts) - counts)[shares])[rows]
        which = shares[rows]
        return _in_order(
            which,
            [
                source.heldout(numbers[which == i], int(counts[i]))
                for i, source in enumerate(self.sources)
            ],
        )


def _in_order(which: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    """Merge the rows of all sources: row j is the next row of the source ``which[j]``."""
    most = max(each.ndim for each in rows)
    rows = [as_packed(each) if each.ndim < most else each for each in rows]
    result = np.empty((len(which), *rows[0].shape[1:]), np.int32)
    for i, each in enumerate(rows):
        result[which == i] = each
    return result


class Schedule:
    """The source of each sequence of a run, with shares in proportion to weights."""

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        """Assign the sequences of a period to sources, in an order that follows from the seed."""
        ends = np.rint(np.cumsum(weights) / np.sum(weights) * PERIOD).astype(np.int64)
        counts = np.maximum(1, np.diff(ends, prepend=0))
        generator = np.random.Generator(np.random.Philox(key=[seed, 0], counter=[0, 0, 0, 3]))
        self._sources = generator.permutation(np.repeat(np.arange(len(counts)), counts))
        self._before = np.empty_like(self._sources)
        for source in range(len(counts)):
            mine = self._sources == source
            self._before[mine] = np.arange(counts[source])
        self._counts = counts

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each sequence's source, and the number of earlier sequences of that source."""
        periods, places = np.divmod(numbers, len(self._sources))
        sources = self._sources[places]
        return sources, periods * self._counts[sources] + self._before[places]
