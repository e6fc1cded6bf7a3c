"""Text into tokens and back: characters, bytes, or a byte-pair encoding, trained or given.

A tokenizer is three pure functions and its definition, the bytes that a corpus's fingerprint
covers. ``tokenizers``, a library of Hugging Face, is imported where a file of its is needed only.
"""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from train.strict import ConfigError

END_OF_TEXT = "<|endoftext|>"
"""Stands between two texts where the encoding knows it, as GPT-2's does."""

BETWEEN_TEXTS = "\n\n"
"""Stands there otherwise."""

DECODED_AT_ONCE = 1 << 16
"""Tokens decoded in one piece where only the length of their text is asked for."""

_PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-"})
_PLAIN |= {0x2014: "--", 0x2026: "...", 0x00C6: "AE", 0x00E6: "ae", 0x0152: "OE", 0x0153: "oe"}


@dataclass(frozen=True)
class Tokenizer:
    """What turns text into integers below ``vocabulary``, and them back into text."""

    vocabulary: int
    encode: Callable[[str], np.ndarray]
    decode: Callable[[Sequence[int]], str]
    between: np.ndarray
    """The tokens between two texts."""
    definition: bytes = b""
    """The tokenizer.json; empty for characters and bytes, which are what they are."""

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The smallest type that holds every token."""
        return next(t for t in (np.uint8, np.uint16, np.uint32) if self.vocabulary - 1 <= _most(t))

    def bytes_in(self, tokens: np.ndarray) -> int:
        """Count the UTF-8 bytes of the text that tokens stand for."""
        pieces = range(0, len(tokens), DECODED_AT_ONCE)
        return sum(len(self.decode(tokens[i : i + DECODED_AT_ONCE]).encode()) for i in pieces)


def _most(kind: type[np.unsignedinteger]) -> int:
    return int(np.iinfo(kind).max)


def plain_ascii(text: str) -> str:
    """Give the nearest ASCII: accents dropped, typographic quotes and dashes made plain.

    Line ends become ``\\n``, and what has no likeness ``?``.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_PLAIN)
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    kept = "".join(c for c in decomposed if not unicodedata.combining(c))
    return kept.encode("ascii", errors="replace").decode("ascii")


def ascii_characters() -> Tokenizer:
    """One token an ASCII character; tokens that are none are shown as escapes."""

    def encode(text: str) -> np.ndarray:
        return np.frombuffer(plain_ascii(text).encode("ascii"), np.uint8)

    def decode(tokens: Sequence[int]) -> str:
        return _as_bytes(tokens).decode("ascii", errors="backslashreplace")

    return Tokenizer(128, encode, decode, encode(BETWEEN_TEXTS))


def utf8_bytes() -> Tokenizer:
    """One token a byte of UTF-8; tokens that make no character are shown as escapes."""

    def encode(text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8", errors="replace"), np.uint8)

    def decode(tokens: Sequence[int]) -> str:
        return _as_bytes(tokens).decode("utf-8", errors="backslashreplace")

    return Tokenizer(256, encode, decode, encode(BETWEEN_TEXTS))


def _as_bytes(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int64).clip(0, 255).astype(np.uint8).tobytes()


def train_bpe(texts: Iterable[str], vocabulary: int) -> bytes:
    """Train a byte-level byte-pair encoding, and give its tokenizer.json.

    Sennrich et al. 2016, arXiv:1508.07909; on bytes, as GPT-2's. The same texts give the same
    bytes. Where there are too few texts for so many tokens, it has fewer.
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
    """Read a tokenizer.json; raises ConfigError where there is none or it isn't one."""
    try:
        definition = path.read_bytes()
    except OSError as err:
        raise ConfigError(
            f"data.tokenizer: must be ascii, bytes, bpe or a tokenizer.json that can be read, "
            f"not {path}: {err.strerror}"
        ) from err
    try:
        return from_definition(definition)
    except ValueError as err:
        why = " ".join(str(err).split())[:120]
        raise ConfigError(f"data.tokenizer: {path} is no tokenizer.json: {why}") from err


def from_definition(definition: bytes) -> Tokenizer:
    """Make a tokenizer of a tokenizer.json's bytes; raises ValueError where they aren't one."""
    import tokenizers

    try:
        encoding: Any = tokenizers.Tokenizer.from_str(definition.decode("utf-8"))
    except Exception as err:  # the library raises nothing narrower
        raise ValueError(err) from err

    def encode(text: str) -> np.ndarray:
        return np.array(encoding.encode(text, add_special_tokens=False).ids, np.uint32)

    def decode(tokens: Sequence[int]) -> str:
        # A model may have rows beyond the encoding's, which nothing is written for.
        known = [int(token) for token in tokens if token < vocabulary]
        return encoding.decode(known, skip_special_tokens=False)

    vocabulary = 1 + max(encoding.get_vocab().values(), default=-1)
    if not vocabulary:
        raise ValueError("it has no tokens")
    end = encoding.token_to_id(END_OF_TEXT)
    between = encode(BETWEEN_TEXTS) if end is None else np.array([end], np.uint32)
    return Tokenizer(vocabulary, encode, decode, between, definition)
