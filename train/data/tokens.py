"""Tokenizers: ASCII characters, bytes, or a byte-pair encoding, trained or from a file.

The library ``tokenizers`` of Hugging Face is imported only for byte-pair encodings.
"""

import json
import logging
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from train.data.files import beside, read_bytes
from train.storage import converted_errors
from train.strict import ConfigError

log = logging.getLogger(__name__)

END_OF_TEXT = "<|endoftext|>"
"""Token that ends a document, as in GPT-2, unless SETTINGS names another one."""

SEPARATOR = "\n\n"
"""Text that ends a document if the encoding has no token for it."""

FILE = "tokenizer.json"

SETTINGS = "tokenizer_config.json"
"""File beside a tokenizer.json with the names of its special tokens and its chat template."""

TEMPLATE = "chat_template.jinja"
"""File beside a tokenizer.json with its chat template, in newer models."""

BESIDE = (SETTINGS, TEMPLATE, "special_tokens_map.json", "generation_config.json")
"""Files beside a tokenizer.json that are copied with it, for an export. generation_config.json has
the ids of the tokens at which text generation ends."""

_PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-"})
_PLAIN |= {0x2014: "--", 0x2026: "...", 0x00C6: "AE", 0x00E6: "ae", 0x0152: "OE", 0x0153: "oe"}


@dataclass(frozen=True)
class Settings:
    """Values from the files beside a tokenizer.json; "" for those that are missing."""

    begin: str = ""
    """``bos_token``, which chat templates may use."""
    end: str = ""
    """``eos_token``, which ends a document."""
    chat_template: str = ""
    files: tuple[tuple[str, bytes], ...] = ()
    """Names and contents of the files beside the tokenizer.json."""

    @classmethod
    def of_files(cls, read: Callable[[str], bytes]) -> "Settings":
        """Parse the files SETTINGS and TEMPLATE; raises ValueError if one is invalid.

        ``read`` returns the content of a file by its name, empty if it does not exist.
        """
        files = {name: content for name in BESIDE if (content := read(name))}
        settings = json.loads(files.get(SETTINGS, b"{}"))
        if not isinstance(settings, dict):
            raise ValueError("must be a JSON object")
        template = settings.get("chat_template")
        if isinstance(template, list):  # named templates: use "default"
            templates = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
            template = templates.get("default")
        values = {"eos_token": settings.get("eos_token"), "bos_token": settings.get("bos_token")}
        values = {k: v.get("content") if isinstance(v, dict) else v for k, v in values.items()}
        for key, value in {**values, "chat_template": template}.items():
            if not isinstance(value, str | None):
                raise ValueError(f"{key} must be text, not {value!r:.40}")
        if TEMPLATE in files:
            template = files[TEMPLATE].decode("utf-8", errors="replace")
        begin, end = values["bos_token"] or "", values["eos_token"] or ""
        return cls(begin, end, template or "", tuple(files.items()))


@dataclass(frozen=True)
class Tokenizer:
    """Conversion between text and tokens, which are integers below ``vocabulary``."""

    vocabulary: int
    encode: Callable[[str], np.ndarray]
    decode: Callable[[Sequence[int]], str]
    end: np.ndarray
    """Tokens after each document."""
    definition: bytes = b""
    """Content of tokenizer.json, part of the corpus's fingerprint; empty for ASCII and bytes."""
    begin: np.ndarray = field(default_factory=lambda: np.array([], np.uint32))
    """Tokens that the tokenizer's own post-processor puts before a text."""
    settings: Settings = Settings()
    encoding: Any = None
    """The object of the library ``tokenizers``; None for ASCII and bytes."""

    def write(self, directory: Path) -> None:
        """Write tokenizer.json and its settings to a directory.

        ASCII and byte tokenizers have no such files, so nothing is written.
        """
        if self.definition:
            (directory / FILE).write_bytes(self.definition)
        for name, content in self.settings.files:
            (directory / name).write_bytes(content)

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode texts, in parallel on all CPU cores if this is a byte-pair encoding."""
        if self.encoding is None:
            return [self.encode(text) for text in texts]
        encoded = self.encoding.encode_batch_fast([*map(_valid, texts)], add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encoded]

    def encode_marked(
        self, texts: Sequence[Sequence[tuple[str, bool]]]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Encode texts; return for each text its tokens and a mask that is True at marked tokens.

        A text is a list of spans (text, is_marked). A byte-pair encoding encodes the joined spans,
        so spans do not change its tokens. A token is marked if any of its characters is.
        """
        if self.encoding is None:
            return [self._encode_spans(spans) for spans in texts]
        joined_texts = [_valid("".join(text for text, _ in spans)) for spans in texts]
        result = []
        for encoding, spans in zip(
            self.encoding.encode_batch(joined_texts, add_special_tokens=False), texts, strict=True
        ):
            marked_chars = np.concatenate(
                [np.full(len(text), is_marked) for text, is_marked in spans]
            )
            # before[i] is the number of marked characters before character i.
            before = np.concatenate([[0], np.cumsum(marked_chars)])
            starts, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
            # Llama 3's tokenizer excludes spaces from offsets, so the range of a token of spaces is
            # empty. Extend it by one character, so that such a token can be marked, too.
            starts = np.minimum(starts, np.maximum(ends - 1, 0))
            result.append((np.array(encoding.ids, np.uint32), before[ends] > before[starts]))
        return result

    def _encode_spans(self, spans: Sequence[tuple[str, bool]]) -> tuple[np.ndarray, np.ndarray]:
        encoded = [self.encode(text) for text, _ in spans]
        masks = [
            np.full(len(t), is_marked) for t, (_, is_marked) in zip(encoded, spans, strict=True)
        ]
        return np.concatenate(encoded), np.concatenate(masks)

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """Smallest unsigned integer type that can store all tokens."""
        return np.min_scalar_type(self.vocabulary - 1).type


def _valid(text: str) -> str:
    """Replace lone surrogates with question marks: JSON can contain them, UTF-8 cannot."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def to_ascii(text: str) -> str:
    """Convert text to ASCII: drop accents, simplify typographic quotes and dashes.

    Line ends become ``\\n``; characters without an equivalent become ``?``.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_PLAIN)
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    without_accents = "".join(c for c in decomposed if not unicodedata.combining(c))
    return without_accents.encode("ascii", errors="replace").decode("ascii")


def _of_bytes(vocabulary: int, clean: Callable[[str], str], encoding: str) -> Tokenizer:
    """Return a tokenizer with one token per byte; invalid bytes decode as escapes."""

    def encode(text: str) -> np.ndarray:
        return np.frombuffer(clean(text).encode(encoding, errors="replace"), np.uint8)

    def decode(tokens: Sequence[int]) -> str:
        content = np.asarray(tokens, np.int64).clip(0, 255).astype(np.uint8).tobytes()
        return content.decode(encoding, errors="backslashreplace")

    return Tokenizer(vocabulary, encode, decode, encode(SEPARATOR))


BUILT_IN = {"ascii": _of_bytes(128, to_ascii, "ascii"), "bytes": _of_bytes(256, str, "utf-8")}
"""Tokenizers without a tokenizer.json, by the value of data.tokenizer."""


def train_bpe(texts: Iterable[str], vocabulary: int) -> bytes:
    """Train a byte-level byte-pair encoding and return its tokenizer.json.

    As in GPT-2, the smallest tokens are bytes (Sennrich et al. 2016, arXiv:1508.07909). The same
    texts give the same file. A small text may yield a smaller vocabulary than ``vocabulary``.
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


def read_file(path: Path | str) -> Tokenizer:
    """Read a tokenizer.json, on disk or gs://, and the settings beside it, if any.

    Raises ConfigError if a file is invalid, and the errors of ``storage.converted_errors`` if one
    cannot be read.
    """
    expected = "must be ascii, bytes, bpe or a readable tokenizer.json"
    with converted_errors(f"data.tokenizer: {expected}, not {path}"):
        definition = read_bytes(path)
    try:
        settings = Settings.of_files(partial(_read_beside, path))
    except (ValueError, AttributeError, RecursionError) as err:
        raise ConfigError(
            f"data.tokenizer: {beside(path, SETTINGS)} is not valid: {_short(err)}"
        ) from err
    try:
        tokenizer = from_definition(definition, settings)
    except ValueError as err:
        raise ConfigError(f"data.tokenizer: {path} is not a tokenizer.json: {_short(err)}") from err
    if SETTINGS not in dict(settings.files) and tokenizer.decode(tokenizer.end) == SEPARATOR:
        log.warning(
            "data.tokenizer: documents end with an empty line, because no token for their end is "
            "known. Put the model's %s beside %s",
            SETTINGS,
            path,
        )
    return tokenizer


def _read_beside(path: Path | str, name: str) -> bytes:
    """Return the content of the file ``name`` in the directory of ``path``; empty if missing."""
    with converted_errors(f"data.tokenizer: {beside(path, name)} cannot be read"):
        try:
            return read_bytes(beside(path, name))
        except FileNotFoundError:
            return b""


def _short(err: Exception) -> str:
    return " ".join(str(err).split())[:120]


def from_definition(definition: bytes, settings: Settings = Settings()) -> Tokenizer:
    """Parse the content of a tokenizer.json.

    Raises ValueError if it is invalid, or does not contain the token ``settings.end``.
    """
    import tokenizers

    try:
        encoding: Any = tokenizers.Tokenizer.from_str(definition.decode("utf-8"))
    except Exception as err:  # tokenizers raises plain Exception
        raise ValueError(err) from err

    # A fine-tuning script may have saved the tokenizer with truncation or padding: disable them.
    encoding.no_truncation()
    encoding.no_padding()

    def encode(text: str) -> np.ndarray:
        return np.array(encoding.encode(_valid(text), add_special_tokens=False).ids, np.uint32)

    def decode(tokens: Sequence[int]) -> str:
        # Omit unknown tokens, which a model with a larger vocabulary can generate.
        known = [int(token) for token in tokens if token < vocabulary]
        return encoding.decode(known, skip_special_tokens=False)

    vocabulary = 1 + max(encoding.get_vocab().values(), default=-1)
    if not vocabulary:
        raise ValueError("it has no tokens")
    end_token = encoding.token_to_id(settings.end or END_OF_TEXT)
    if end_token is None and settings.end:
        raise ValueError(f"it has no token {settings.end!r}, which {SETTINGS} names as eos_token")
    end = encode(SEPARATOR) if end_token is None else np.array([end_token], np.uint32)
    begin = _begin(encoding)
    return Tokenizer(vocabulary, encode, decode, end, definition, begin, settings, encoding)


def _begin(encoding: Any) -> np.ndarray:
    """Return the tokens that the encoding's post-processor puts before a text."""
    marked = encoding.encode("a", add_special_tokens=True)
    before = list(marked.special_tokens_mask).index(0) if 0 in marked.special_tokens_mask else 0
    return np.array(marked.ids[:before], np.uint32)
