"""Sequences of a prepared corpus, which can be read in any order, without an iterator.

JoinedText selects sequences by step and row, PackedDocuments by their numbers, which count from the
start of the run. A packed sequence is an array (4, context + 1) of the rows TOKENS, SEGMENTS,
POSITIONS and LEARNED, which ``train.core.model.loss`` explains.
"""

import logging
from functools import lru_cache
from pathlib import Path

import numpy as np

from train.data.documents import LENGTHS
from train.data.packing import pack
from train.strict import ConfigError

log = logging.getLogger(__name__)

TOKENS, SEGMENTS, POSITIONS, LEARNED = range(4)


class JoinedText:
    """Sequences that start anywhere in a corpus whose documents were joined to one text."""

    def __init__(
        self, directory: Path, dtype: type, length: int, seed: int, batch: int, is_packed: bool
    ) -> None:
        """Open a corpus for sequences of ``length`` tokens.

        With ``is_packed``, each sequence has the shape of a packed sequence, with one document.
        """
        self.tokens = _mapped(directory / "train.bin", dtype)
        self._heldout = _mapped(directory / "heldout.bin", dtype)
        self._length, self._seed, self._batch = length, seed, batch
        self._is_packed = is_packed

    def rows(self, step: int, within: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return the sequences at the indices ``within`` of a step's batch, as int32.

        ``numbers`` is ignored; only PackedDocuments uses it.

        Sequences start at uniformly random positions of the corpus. The generator, Philox (Salmon
        et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), is keyed by (seed, step), so
        that no two steps share a stream.
        """
        generator = random_generator(self._seed, step, 0)
        starts = generator.integers(len(self.tokens) - self._length + 1, size=self._batch)
        return self._at(self.tokens, starts[within])

    def heldout(self, numbers: np.ndarray, count: int) -> np.ndarray:
        """Space ``count`` sequences evenly over the held-out text; return those at ``numbers``.

        In a short text, sequences overlap.
        """
        starts = np.linspace(0, len(self._heldout) - self._length, count).astype(np.int64)
        return self._at(self._heldout, starts[numbers])

    def _at(self, tokens: np.ndarray, starts: np.ndarray) -> np.ndarray:
        rows = tokens[starts[:, None] + np.arange(self._length)].astype(np.int32)
        if not self._is_packed:
            return rows
        positions = np.broadcast_to(np.arange(self._length, dtype=np.int32), rows.shape)
        return np.stack([rows, np.ones_like(rows), positions, np.minimum(positions, 1)], axis=1)


class PackedDocuments:
    """Sequences of whole documents; each occurs once per epoch, in an order drawn from the seed."""

    def __init__(self, directory: Path, dtype: type, length: int, seed: int) -> None:
        """Open and pack a corpus; raises ConfigError if nothing in it can be learned."""
        self._train = _Packed(directory, "train", dtype, length, seed)
        self._heldout = _Packed(directory, "heldout", dtype, length, seed)
        self._order = lru_cache(maxsize=2)(
            lambda epoch: random_generator(seed, epoch, 1).permutation(len(self._train))
        )
        if not len(self._train):
            raise ConfigError(
                f"data: no document in {directory.name} has a token to learn within model.context "
                f"({length - 1}) tokens. Set a larger model.context, or use other data"
            )

    def rows(self, step: int, within: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return packed sequences by their numbers: int32 (rows, 4, length).

        The numbers are counted over all epochs. ``step`` and ``within`` are ignored; only
        JoinedText uses them.
        """
        epochs, indices = np.divmod(numbers, len(self._train))
        return self._train.at([self._order(e)[i] for e, i in zip(epochs, indices, strict=True)])

    def heldout(self, numbers: np.ndarray, count: int) -> np.ndarray:
        """Return the sequences at ``numbers`` among ``count`` evenly spaced held-out sequences."""
        if not len(self._heldout):
            raise ConfigError(
                "data.heldout: no held-out document has a token to learn. Hold out more documents"
            )
        chosen = np.linspace(0, len(self._heldout) - 1, count).astype(np.int64)
        return self._heldout.at(chosen[numbers])


class _Packed:
    """Sequences packed with the documents of one split, ``train`` or ``heldout``."""

    def __init__(self, directory: Path, split: str, dtype: type, length: int, seed: int) -> None:
        self._length = length
        self._tokens = _mapped(directory / f"{split}.bin", dtype)
        learned = directory / f"{split}.learned"
        self._learned = _mapped(learned, np.uint8) if learned.exists() else None
        sizes, firsts = np.fromfile(directory / f"{split}.documents", LENGTHS).reshape(-1, 2).T
        starts = np.cumsum(sizes, dtype=np.int64) - sizes
        if self._learned is None:  # not conversations: divide long documents
            starts, sizes = _divided(starts, sizes.astype(np.int64), length)
            useful = sizes > 1
        else:
            useful = firsts < np.minimum(sizes, length)
        if cut := int(np.sum(sizes > length)):
            log.warning(
                "%s: %d of %d conversations are cut to model.context tokens", split, cut, len(sizes)
            )
        if missing := int(np.sum(~useful)):
            log.warning(
                "%s: %d of %d documents are left out: no learned token within model.context tokens",
                split,
                missing,
                len(sizes),
            )
        starts, sizes = starts[useful], np.minimum(sizes, length)[useful].astype(np.int64)
        mixed = random_generator(seed, 0, 2).permutation(len(starts))
        self._starts, self._sizes = starts[mixed], sizes[mixed]
        sequence_of = pack(self._sizes, length)
        self._documents = np.argsort(sequence_of, kind="stable")
        self._ends = np.cumsum(np.bincount(sequence_of)) if len(sequence_of) else sequence_of

    def __len__(self) -> int:
        return len(self._ends)

    def at(self, numbers: np.ndarray | list[int]) -> np.ndarray:
        """Return the packed sequences with these indices in the split: int32 (n, 4, length).

        The four rows of a sequence are TOKENS, SEGMENTS, POSITIONS and LEARNED.
        """
        rows = np.zeros((len(numbers), 4, self._length), np.int32)
        for row, number in zip(rows, numbers, strict=True):
            filled = 0
            first = self._ends[number - 1] if number else 0
            for segment, i in enumerate(self._documents[first : self._ends[number]], 1):
                source = slice(self._starts[i], self._starts[i] + self._sizes[i])
                target = slice(filled, filled + self._sizes[i])
                row[TOKENS, target] = self._tokens[source]
                row[SEGMENTS, target] = segment
                row[POSITIONS, target] = np.arange(self._sizes[i])
                row[LEARNED, target] = 1 if self._learned is None else self._learned[source]
                row[LEARNED, filled] = 0
                filled = target.stop
            row[POSITIONS, filled:] = np.arange(self._length - filled)
        return rows


def _divided(starts: np.ndarray, sizes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide documents into chunks of up to ``length`` tokens; return the chunks' starts and sizes.

    The last token of a chunk is the first of the next one, so that each token is learned once.
    """
    stride = length - 1
    counts = np.maximum(1, -(-(sizes - 1) // stride))
    document = np.repeat(np.arange(len(sizes)), counts)
    offset = stride * (np.arange(len(document)) - (np.cumsum(counts) - counts)[document])
    return starts[document] + offset, np.minimum(length, sizes[document] - offset)


def _mapped(path: Path, dtype: type) -> np.ndarray:
    """Map a file into memory; return an empty array for an empty file, which can't be mapped."""
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def random_generator(seed: int, number: int, stream: int) -> np.random.Generator:
    """Return a random generator that is independent for each (seed, number, stream).

    ``number`` is the step or the epoch, or 0 for what is the same in all epochs. ``stream``
    distinguishes uses: JoinedText uses stream 0, PackedDocuments 1, _Packed 2, Schedule 3.
    """
    return np.random.Generator(np.random.Philox(key=[seed, number], counter=[0, 0, 0, stream]))
