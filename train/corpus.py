"""Prepared corpora: files of tokens, made from text once per machine.

The name of a corpus's directory contains a digest of its text, tokenizer and options, so that a
change of these leads to another directory. Its files are::

    train.bin  heldout.bin   tokens: little-endian unsigned integers of the smallest type that fits
    tokenizer.json           the byte-pair encoding, if the corpus uses one
    meta.json                the fields of Meta
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
from train.contract import check_path_writable
from train.texts import CorpusError, Source, source
from train.tokens import Tokenizer

FORMAT = "2"
"""Version of the file format. It is part of the digest; change it when the format changes."""

_SHARED_DATA = Path("/var/lib/tpufleet/data")


@dataclass(frozen=True)
class Meta:
    """Description of a prepared corpus; ``train`` and ``heldout`` are numbers of tokens.

    ``fingerprint`` is the hexadecimal SHA-256 of tokens and tokenizer, ``heldout_bytes`` the length
    of the held-out text in bytes of UTF-8.
    """

    name: str
    tokenizer: str
    vocabulary: int
    train: int
    heldout: int
    heldout_bytes: int
    fingerprint: str


def prepare(cfg: DataConfig, fetch: Callable[[Path], bool] = lambda directory: False) -> Path:
    """Prepare the corpus, unless this machine has it already, and return its directory.

    ``fetch`` may first create the directory from another source, and returns whether it did.
    Several processes may prepare a corpus concurrently: each writes a temporary directory, and the
    first process to finish renames its directory to the final name. Raises ConfigError for a
    missing corpus, path, dataset or tokenizer and for a directory that cannot be written,
    CorpusError if the text cannot be loaded.
    """
    root = Path(cfg.directory).expanduser() if cfg.directory else default_data_directory()
    from_file = None
    if cfg.tokenizer not in ("ascii", "bytes", "bpe"):
        from_file = tokens.read_file(Path(cfg.tokenizer).expanduser())
    text = source(cfg, root)
    tokenizer = from_file.definition if from_file else f"{cfg.tokenizer} {cfg.vocabulary}".encode()
    if cfg.tokenizer in ("ascii", "bytes"):
        tokenizer = cfg.tokenizer.encode()
    digest = _digest(FORMAT.encode(), text.digest.encode(), repr(cfg.heldout).encode(), tokenizer)
    directory = root / f"{text.name}-{digest[:16]}"
    if os.path.exists(directory / "meta.json"):  # noqa: PTH110 - Path.exists raises PermissionError
        return directory
    check_path_writable(root, "data.directory")
    if fetch(directory):
        return directory
    try:
        with tempfile.TemporaryDirectory(prefix=f".{text.name}-", dir=root) as temporary:
            _write(Path(temporary) / "corpus", text, cfg, from_file)
            try:
                (Path(temporary) / "corpus").rename(directory)
            except OSError:
                if not (directory / "meta.json").exists():  # else another process finished first
                    raise
    except OSError as err:
        raise CorpusError(f"data.directory: {directory} cannot be written: {err.strerror}") from err
    return directory


def default_data_directory() -> Path:
    """Return the default ``data.directory``: that of a worker if writable, or the user's cache."""
    if os.access(_SHARED_DATA, os.W_OK | os.X_OK):
        return _SHARED_DATA
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        raise ConfigError("data.directory: must be set, because this user has no home") from None
    return Path(cache) / "tpufleet" / "data"


def read_meta(directory: Path) -> Meta:
    """Read a prepared corpus's ``meta.json`` and check the lengths of its files.

    Raises CorpusError if a file is missing or damaged, ConfigError if this user may not read it.
    """
    fix = "remove the directory to prepare it again"
    try:
        meta = Meta(**json.loads((directory / "meta.json").read_text()))
        sizes = {split: _size(directory / f"{split}.bin") for split in ("train", "heldout")}
        width = read_tokenizer(directory, meta).dtype().itemsize
    except PermissionError as err:
        raise ConfigError(
            f"data.directory: {err.filename}: cannot be read: {err.strerror}; set another "
            "directory, or have its owner allow this user to read it"
        ) from err
    except (OSError, ValueError, TypeError) as err:
        raise CorpusError(f"{directory}: is not a prepared corpus ({err}); {fix}") from err
    for split, count in (("train", meta.train), ("heldout", meta.heldout)):
        if sizes[split] != count * width:
            raise CorpusError(
                f"{directory}/{split}.bin: {sizes[split]} bytes, but meta.json lists "
                f"{count} tokens of {width} bytes; {fix}"
            )
    return meta


def _size(path: Path) -> int:
    """Return the length of a file in bytes; raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_size


def read_tokenizer(directory: Path, meta: Meta) -> Tokenizer:
    """Return the tokenizer that a corpus was prepared with."""
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


def _write(directory: Path, text: Source, cfg: DataConfig, from_file: Tokenizer | None) -> None:
    directory.mkdir()
    tokenizer = from_file or _tokenizer(text, cfg)
    if tokenizer.definition:
        (directory / "tokenizer.json").write_bytes(tokenizer.definition)
    count = _write_tokens(directory / "train.bin", text, tokenizer)
    width = tokenizer.dtype().itemsize
    heldout = _split_heldout(directory, count, int(count * cfg.heldout), width)
    heldout_tokens = np.fromfile(directory / "heldout.bin", tokenizer.dtype)
    meta = Meta(
        text.name,
        cfg.tokenizer if from_file is None else "given",
        tokenizer.vocabulary,
        count - heldout,
        heldout,
        tokenizer.bytes_in(heldout_tokens),
        fingerprint(directory, tokenizer),
    )
    (directory / "meta.json").write_text(json.dumps(asdict(meta), indent=1) + "\n")


def _tokenizer(text: Source, cfg: DataConfig) -> Tokenizer:
    if cfg.tokenizer == "bpe":
        chunks = (chunk for document in text.read() for chunk in document)
        return tokens.from_definition(tokens.train_bpe(chunks, cfg.vocabulary))
    return tokens.ascii_characters() if cfg.tokenizer == "ascii" else tokens.utf8_bytes()


def _write_tokens(path: Path, text: Source, tokenizer: Tokenizer) -> int:
    """Write the tokens of all documents, chunk by chunk, and return their number."""
    count = 0
    with path.open("wb") as file:
        for chunk in _encoded(text, tokenizer):
            file.write(chunk.astype(tokenizer.dtype).tobytes())
            count += len(chunk)
    return count


def _encoded(text: Source, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    for i, document in enumerate(text.read()):
        if i:
            yield tokenizer.separator
        for chunk in document:
            yield tokenizer.encode(chunk)


def _split_heldout(directory: Path, count: int, heldout: int, width: int) -> int:
    """Move the last ``heldout`` tokens from train.bin to heldout.bin; return ``heldout``."""
    with (directory / "train.bin").open("r+b") as file:
        file.seek((count - heldout) * width)
        (directory / "heldout.bin").write_bytes(file.read())
        file.truncate((count - heldout) * width)
    return heldout


def fingerprint(directory: Path, tokenizer: Tokenizer) -> str:
    """Return the hexadecimal SHA-256 of a prepared corpus's tokens and tokenizer."""
    digest = hashlib.sha256(tokenizer.definition)
    for split in ("train", "heldout"):
        path = directory / f"{split}.bin"
        digest.update(path.stat().st_size.to_bytes(8, "big"))
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
