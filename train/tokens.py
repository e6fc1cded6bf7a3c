"""Tokenizers: ASCII characters, bytes, or a byte-pair encoding, trained or from a file.

The library ``tokenizers`` of Hugging Face is imported only for byte-pair encodings.
"""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from train.strict import ConfigError

END_OF_TEXT = "<|endoftext|>"
"""Token that separates documents, if the encoding has it, as GPT-2's does."""

SEPARATOR = "\n\n"
"""Text that separates documents if the encoding has no END_OF_TEXT."""

DECODE_CHUNK_TOKENS = 1 << 16
"""Number of tokens decoded at once to count the bytes of their text."""

_PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-"})
_PLAIN |= {0x2014: "--", 0x2026: "...", 0x00C6: "AE", 0x00E6: "ae", 0x0152: "OE", 0x0153: "oe"}


@dataclass(frozen=True)
class Tokenizer:
    """Functions from text to integers below ``vocabulary`` and back."""

    vocabulary: int
    encode: Callable[[str], np.ndarray]
    decode: Callable[[Sequence[int]], str]
    separator: np.ndarray
    """Tokens between two documents."""
    definition: bytes = b""
    """Content of tokenizer.json, part of the corpus's fingerprint; empty for ASCII and bytes."""

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """Smallest unsigned integer type that can store all tokens."""
        return next(t for t in (np.uint8, np.uint16, np.uint32) if self.vocabulary - 1 <= _most(t))

    def bytes_in(self, tokens: np.ndarray) -> int:
        """Count the UTF-8 bytes of the decoded tokens."""
        starts = range(0, len(tokens), DECODE_CHUNK_TOKENS)
        return sum(len(self.decode(tokens[i : i + DECODE_CHUNK_TOKENS]).encode()) for i in starts)


def _most(kind: type[np.unsignedinteger]) -> int:
    return int(np.iinfo(kind).max)


def to_ascii(text: str) -> str:
    """Convert text to ASCII: drop accents, simplify typographic quotes and dashes.

    Line ends become ``\\n``; characters without an equivalent become ``?``.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_PLAIN)
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    kept = "".join(c for c in decomposed if not unicodedata.combining(c))
    return kept.encode("ascii", errors="replace").decode("ascii")


def ascii_characters() -> Tokenizer:
    """Return a tokenizer with one token per ASCII character; invalid tokens decode as escapes."""

    def encode(text: str) -> np.ndarray:
        return np.frombuffer(to_ascii(text).encode("ascii"), np.uint8)

    def decode(tokens: Sequence[int]) -> str:
        return _as_bytes(tokens).decode("ascii", errors="backslashreplace")

    return Tokenizer(128, encode, decode, encode(SEPARATOR))


def utf8_bytes() -> Tokenizer:
    """Return a tokenizer with one token per UTF-8 byte; invalid sequences decode as escapes."""

    def encode(text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8", errors="replace"), np.uint8)

    def decode(tokens: Sequence[int]) -> str:
        return _as_bytes(tokens).decode("utf-8", errors="backslashreplace")

    return Tokenizer(256, encode, decode, encode(SEPARATOR))


def _as_bytes(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int64).clip(0, 255).astype(np.uint8).tobytes()


def train_bpe(texts: Iterable[str], vocabulary: int) -> bytes:
    """Train a byte-level byte-pair encoding and return its tokenizer.json.

    It works on bytes, as GPT-2's does (Sennrich et al. 2016, arXiv:1508.07909). The same texts give
    the same file. A small text may yield a smaller vocabulary than ``vocabulary``.
    """
    import tokenizers

    encoding = tokenizers.Tokenizer(tokenizers.models.BPE())
    encoding.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoding.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    encoding.train_from_iterator(texts, trainer)
    return encoding.to_str().encode("utf-8")


def read_file(path: Path) -> Tokenizer:
    """Read a tokenizer.json; raises ConfigError if it is missing or invalid."""
    try:
        definition = path.read_bytes()
    except OSError as err:
        raise ConfigError(
            f"data.tokenizer: must be ascii, bytes, bpe or a readable tokenizer.json, "
            f"not {path}: {err.strerror}"
        ) from err
    try:
        return from_definition(definition)
    except ValueError as err:
        why = " ".join(str(err).split())[:120]
        raise ConfigError(f"data.tokenizer: {path} is not a tokenizer.json: {why}") from err


def from_definition(definition: bytes) -> Tokenizer:
    """Parse the content of a tokenizer.json; raises ValueError for an invalid one."""
    import tokenizers

    try:
        encoding: Any = tokenizers.Tokenizer.from_str(definition.decode("utf-8"))
    except Exception as err:  # the library raises no narrower type
        raise ValueError(err) from err

    def encode(text: str) -> np.ndarray:
        return np.array(encoding.encode(text, add_special_tokens=False).ids, np.uint32)

    def decode(tokens: Sequence[int]) -> str:
        # A model with a larger vocabulary can generate tokens that the encoding lacks.
        known = [int(token) for token in tokens if token < vocabulary]
        return encoding.decode(known, skip_special_tokens=False)

    vocabulary = 1 + max(encoding.get_vocab().values(), default=-1)
    if not vocabulary:
        raise ValueError("it has no tokens")
    end = encoding.token_to_id(END_OF_TEXT)
    separator = encode(SEPARATOR) if end is None else np.array([end], np.uint32)
    return Tokenizer(vocabulary, encode, decode, separator, definition)
