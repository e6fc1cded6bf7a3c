"""From text to tokens on disk: ``prepare`` makes a directory of binary files, once a machine.

A prepared corpus is a directory named by its content, so that it never goes stale::

    train.bin  heldout.bin   little-endian unsigned integers, as small as the vocabulary allows
    tokenizer.json           the byte-pair encoding, if there is one
    meta.json                what Meta says, its counts in tokens
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from train import tokens
from train.config import ConfigError, DataConfig
from train.contract import try_to_write
from train.texts import CorpusError, Source, source
from train.tokens import Tokenizer

FORMAT = "2"
"""Part of the name of a prepared corpus: a change of what stands in it needs another one."""

_SHARED_DATA = Path("/var/lib/tpufleet/data")


@dataclass(frozen=True)
class Meta:
    """What a prepared corpus is.

    ``fingerprint`` is the SHA-256 of its tokens and its tokenizer, hexadecimal;
    ``heldout_bytes`` the length of the held-out text in UTF-8.
    """

    name: str
    tokenizer: str
    vocabulary: int
    train: int
    heldout: int
    heldout_bytes: int
    fingerprint: str


def prepare(cfg: DataConfig, fetch: Callable[[Path], bool] = lambda directory: False) -> Path:
    """Return the directory of the prepared corpus, making it where it isn't there yet.

    ``fetch`` may have it from elsewhere, and tells whether it did. Several processes may do so at
    once: each works in a directory of its own, and the first that is done gives it its name. Raises
    ConfigError for a corpus, path, dataset or tokenizer that doesn't exist and a directory that
    can't be written, CorpusError where text could not be had.
    """
    root = Path(cfg.directory).expanduser() if cfg.directory else default_directory()
    given = None
    if cfg.tokenizer not in ("ascii", "bytes", "bpe"):
        given = tokens.read_file(Path(cfg.tokenizer).expanduser())
    text = source(cfg, root)
    how = given.definition if given else f"{cfg.tokenizer} {cfg.vocabulary}".encode()
    if cfg.tokenizer in ("ascii", "bytes"):
        how = cfg.tokenizer.encode()
    parts = (FORMAT.encode(), text.digest.encode(), repr(cfg.heldout).encode(), how)
    directory = root / f"{text.name}-{_digest(*parts)[:16]}"
    if os.path.exists(directory / "meta.json"):  # noqa: PTH110 - Path's raises where it may not look
        return directory
    try_to_write(root, "data.directory")
    if fetch(directory):
        return directory
    try:
        with tempfile.TemporaryDirectory(prefix=f".{text.name}-", dir=root) as made:
            _write(Path(made) / "corpus", text, cfg, given)
            try:
                (Path(made) / "corpus").rename(directory)
            except OSError:
                if not (directory / "meta.json").exists():  # else another process was first
                    raise
    except OSError as err:
        raise CorpusError(f"data.directory: {directory} cannot be written: {err.strerror}") from err
    return directory


def default_directory() -> Path:
    """Where prepared corpora live: a worker's data directory, else the user's cache."""
    if os.access(_SHARED_DATA, os.W_OK | os.X_OK):
        return _SHARED_DATA
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        raise ConfigError("data.directory: must be given where this user has no home") from None
    return Path(cache) / "tpufleet" / "data"


def read_meta(directory: Path) -> Meta:
    """Read a prepared corpus's ``meta.json`` and try its files.

    Raises CorpusError where one is damaged, ConfigError where this user may not read it.
    """
    remedy = "remove the directory, and it is prepared again"
    try:
        meta = Meta(**json.loads((directory / "meta.json").read_text()))
        sizes = {part: _size(directory / f"{part}.bin") for part in ("train", "heldout")}
        width = read_tokenizer(directory, meta).dtype().itemsize
    except PermissionError as err:
        raise ConfigError(
            f"data.directory: {err.filename}: cannot be read: {err.strerror}; take another "
            "directory, or have its owner let this user in"
        ) from err
    except (OSError, ValueError, TypeError) as err:
        raise CorpusError(f"{directory}: is no prepared corpus ({err}); {remedy}") from err
    for part, count in (("train", meta.train), ("heldout", meta.heldout)):
        if sizes[part] != count * width:
            raise CorpusError(
                f"{directory}/{part}.bin: {sizes[part]} bytes where meta.json says "
                f"{count} tokens of {width}; {remedy}"
            )
    return meta


def _size(path: Path) -> int:
    """The length of a file that can be read, in bytes."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_size


def read_tokenizer(directory: Path, meta: Meta) -> Tokenizer:
    """Give the tokenizer that a corpus was prepared with."""
    if meta.tokenizer == "ascii":
        return tokens.ascii_characters()
    if meta.tokenizer == "bytes":
        return tokens.utf8_bytes()
    return tokens.from_definition((directory / "tokenizer.json").read_bytes())


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _write(directory: Path, text: Source, cfg: DataConfig, given: Tokenizer | None) -> None:
    directory.mkdir()
    tokenizer = given or _tokenizer(text, cfg)
    if tokenizer.definition:
        (directory / "tokenizer.json").write_bytes(tokenizer.definition)
    count = _write_tokens(directory / "train.bin", text, tokenizer)
    width = tokenizer.dtype().itemsize
    heldout = _cut(directory, count, int(count * cfg.heldout), width)
    ends = np.fromfile(directory / "heldout.bin", tokenizer.dtype)
    meta = Meta(
        text.name,
        cfg.tokenizer if given is None else "given",
        tokenizer.vocabulary,
        count - heldout,
        heldout,
        tokenizer.bytes_in(ends),
        fingerprint(directory, tokenizer),
    )
    (directory / "meta.json").write_text(json.dumps(asdict(meta), indent=1) + "\n")


def _tokenizer(text: Source, cfg: DataConfig) -> Tokenizer:
    if cfg.tokenizer == "bpe":
        pieces = (piece for one in text.read() for piece in one)
        return tokens.from_definition(tokens.train_bpe(pieces, cfg.vocabulary))
    return tokens.ascii_characters() if cfg.tokenizer == "ascii" else tokens.utf8_bytes()


def _write_tokens(path: Path, text: Source, tokenizer: Tokenizer) -> int:
    """Write all tokens of all texts, a piece at a time, and give how many they are."""
    count = 0
    with path.open("wb") as file:
        for piece in _encoded(text, tokenizer):
            file.write(piece.astype(tokenizer.dtype).tobytes())
            count += len(piece)
    return count


def _encoded(text: Source, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    for i, one in enumerate(text.read()):
        if i:
            yield tokenizer.between
        for piece in one:
            yield tokenizer.encode(piece)


def _cut(directory: Path, count: int, heldout: int, width: int) -> int:
    """Move the last tokens into a file of their own."""
    with (directory / "train.bin").open("r+b") as file:
        file.seek((count - heldout) * width)
        (directory / "heldout.bin").write_bytes(file.read())
        file.truncate((count - heldout) * width)
    return heldout


def fingerprint(directory: Path, tokenizer: Tokenizer) -> str:
    """Give the SHA-256 of a prepared corpus's tokens and its tokenizer, in hexadecimal."""
    digest = hashlib.sha256(tokenizer.definition)
    for part in ("train", "heldout"):
        path = directory / f"{part}.bin"
        digest.update(path.stat().st_size.to_bytes(8, "big"))
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
