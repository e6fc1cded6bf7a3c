"""Prepared corpora: files of tokens, made from text once per machine.

The name of a corpus's directory contains a digest of the text, tokenizer and options, so a change
of any of them results in another directory. The files of a corpus are::

    train.bin  heldout.bin   tokens: little-endian unsigned integers of the smallest type that fits
    tokenizer.json           the byte-pair encoding, if the corpus uses one, with copies of the
                             files beside it that tokens.BESIDE lists, if they exist
    *.documents  *.learned   only for whole documents; see documents.py
    meta.json                the fields of Meta
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from train.data import hub, tokens
from train.data.chat import ChatTemplate, chat_template
from train.data.config import DataConfig, SourceConfig
from train.data.documents import (
    LENGTHS,
    conversations,
    packed,
    split_heldout,
    write_documents,
    write_joined,
)
from train.data.texts import CorpusError, Source, source
from train.data.tokens import Tokenizer
from train.storage import UnavailableError, check_path_writable, new_directory, parse_location
from train.strict import ConfigError

FORMAT = "4"
"""Version of the file format, part of a directory's digest; change it when the format changes."""

DOCUMENT_FILES = ("train.documents", "train.learned", "heldout.documents", "heldout.learned")

_SHARED_DATA = Path("/var/lib/tpufleet/data")


@dataclass(frozen=True)
class Meta:
    """Description of a prepared corpus; ``train`` and ``heldout`` are numbers of tokens.

    ``fingerprint`` is the hexadecimal SHA-256 of tokens and tokenizer.
    """

    name: str
    tokenizer: str
    vocabulary: int
    train: int
    heldout: int
    fingerprint: str
    documents: str


def prepare_all(
    cfg: DataConfig, fetch: Callable[[Path], bool] = lambda directory: False
) -> list[Path]:
    """Prepare the corpora of all sources and return their directories, as ``prepare`` does."""
    keys = [field.name for field in fields(SourceConfig)]
    return [
        prepare(replace(cfg, mixture=(), **{key: getattr(source_cfg, key) for key in keys}), fetch)
        for source_cfg in cfg.sources
    ]


def prepare(cfg: DataConfig, fetch: Callable[[Path], bool] = lambda directory: False) -> Path:
    """Prepare the corpus, unless this machine has it already, and return its directory.

    ``fetch`` gets the directory, may download the corpus to it, and returns whether the directory
    exists now. If not, the corpus is prepared. Several processes may prepare a corpus concurrently:
    the first one that finishes creates the directory. Raises ConfigError for a missing corpus,
    path, dataset or tokenizer and for a directory that this user may not write to, CorpusError if
    the text cannot be loaded, UnavailableError if writing the corpus fails, as on a full disk.
    """
    root = data_directory(cfg)
    tokenizer = _configured_tokenizer(cfg)
    template = chat_template(tokenizer, cfg) if cfg.documents == "chat" and tokenizer else None
    text = source(cfg, root)
    digest_inputs = [FORMAT.encode(), text.digest.encode(), repr(cfg.heldout).encode()]
    if tokenizer:
        digest_inputs.append(tokenizer.definition or cfg.tokenizer.encode())
        digest_inputs += [content for _, content in tokenizer.settings.files]
    else:
        digest_inputs.append(f"bpe {cfg.vocabulary}".encode())
    if cfg.documents != "joined":
        digest_inputs += [cfg.documents.encode(), repr(template and template.identity).encode()]
    framed = b"".join(len(item).to_bytes(8, "big") + item for item in digest_inputs)
    directory = root / f"{text.name}-{hashlib.sha256(framed).hexdigest()[:16]}"
    if os.path.exists(directory / "meta.json"):  # noqa: PTH110 - Path.exists raises PermissionError
        return directory
    check_path_writable(root, "data.directory")
    if fetch(directory):
        return directory
    try:
        with new_directory(directory) as new:
            _write(new, text, cfg, tokenizer, template)
    except OSError as err:
        # No ConfigError: check_path_writable() has just written there, so a retry may succeed.
        raise UnavailableError(
            f"data.directory: {directory}: cannot be written: {err.strerror}. "
            "Free space there, or set another directory"
        ) from err
    return directory


def data_directory(cfg: DataConfig) -> Path:
    """Return the directory of prepared corpora and downloads.

    Without ``data.directory``, this is the worker's shared data directory if it is writable, else a
    directory in the user's cache.
    """
    if cfg.directory:
        return Path(cfg.directory).expanduser()
    if os.access(_SHARED_DATA, os.W_OK | os.X_OK):
        return _SHARED_DATA
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        raise ConfigError("data.directory: must be set: this user has no home directory") from None
    return Path(cache) / "tpufleet" / "data"


def read_meta(directory: Path) -> Meta:
    """Read a prepared corpus's ``meta.json`` and check the lengths of its files.

    Raises CorpusError if a file is missing or damaged, ConfigError if this user may not read it.
    """
    fix = "Remove the directory to prepare it again"
    try:
        meta = Meta(**json.loads((directory / "meta.json").read_text()))
        width = read_tokenizer(directory, meta).dtype().itemsize
        for split, count in (("train", meta.train), ("heldout", meta.heldout)):
            if (size := _size(directory / f"{split}.bin")) != count * width:
                raise CorpusError(
                    f"{directory}/{split}.bin: {size} bytes, but meta.json lists "
                    f"{count} tokens of {width} bytes. {fix}"
                )
            if not _documents_fit(directory, split, meta, count):
                raise CorpusError(
                    f"{directory}/{split}.documents: does not match the tokens in {split}.bin. "
                    f"{fix}"
                )
    except PermissionError as err:
        raise ConfigError(
            f"data.directory: {err.filename}: cannot be read: {err.strerror}. Set another "
            "directory, or have its owner allow this user to read it"
        ) from err
    except (OSError, ValueError, TypeError) as err:
        raise CorpusError(f"{directory}: is not a prepared corpus ({err}). {fix}") from err
    return meta


def _documents_fit(directory: Path, split: str, meta: Meta, count: int) -> bool:
    """Return whether the files about whole documents, if any, match a split of ``count`` tokens."""
    if meta.documents == "joined":
        return True
    if meta.documents == "chat" and _size(directory / f"{split}.learned") != count:
        return False
    lengths = np.fromfile(directory / f"{split}.documents", LENGTHS)[::2]
    return int(lengths.sum(dtype=np.int64)) == count


def _size(path: Path) -> int:
    """Return the length of a file in bytes; raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_size


def read_tokenizer(directory: Path, meta: Meta) -> Tokenizer:
    """Return the tokenizer that a corpus was prepared with."""
    if meta.tokenizer in tokens.BUILT_IN:
        return tokens.BUILT_IN[meta.tokenizer]
    settings = tokens.Settings.of_files(
        lambda name: (directory / name).read_bytes() if (directory / name).exists() else b""
    )
    return tokens.from_definition((directory / tokens.FILE).read_bytes(), settings)


def _configured_tokenizer(cfg: DataConfig) -> Tokenizer | None:
    """Return the tokenizer that a config selects; None if it is to be trained on the text."""
    if cfg.tokenizer == "bpe":
        return None
    if cfg.tokenizer in tokens.BUILT_IN:
        return tokens.BUILT_IN[cfg.tokenizer]
    if hub.is_repository(cfg.tokenizer):
        return tokens.read_file(hub_tokenizer(cfg))
    return tokens.read_file(parse_location(cfg.tokenizer, "data.tokenizer"))


def hub_tokenizer(cfg: DataConfig) -> Path:
    """Download a tokenizer and its settings from the hub; return the path of tokenizer.json."""
    files = [tokens.FILE, *tokens.BESIDE]
    return hub.download(cfg.tokenizer, files, "data.tokenizer") / tokens.FILE


def _write(
    directory: Path,
    text: Source,
    cfg: DataConfig,
    configured_tokenizer: Tokenizer | None,
    template: ChatTemplate | None,
) -> None:
    tokenizer = configured_tokenizer
    if tokenizer is None:
        chunks = (chunk for document in text.read() for chunk in document)
        tokenizer = tokens.from_definition(tokens.train_bpe(chunks, cfg.vocabulary))
    tokenizer.write(directory)
    if template:
        if template.source != tokenizer.settings.chat_template:
            (directory / tokens.TEMPLATE).write_text(template.source, encoding="utf-8")
        documents = conversations(text, tokenizer, template)
        write_documents(directory, documents, tokenizer, have_masks=True)
    elif cfg.documents == "packed":
        write_documents(directory, packed(text, tokenizer), tokenizer, have_masks=False)
    else:
        write_joined(directory / "train.bin", text, tokenizer)
    train, heldout = split_heldout(directory, cfg.heldout, tokenizer.dtype().itemsize)
    meta = Meta(
        text.name,
        cfg.tokenizer if cfg.tokenizer in ("bpe", *tokens.BUILT_IN) else "given",
        tokenizer.vocabulary,
        train,
        heldout,
        fingerprint(directory, tokenizer),
        cfg.documents,
    )
    (directory / "meta.json").write_text(json.dumps(asdict(meta), indent=1) + "\n")


def fingerprint_of(metas: Sequence[Meta], weights: Sequence[float]) -> str:
    """Return the fingerprint of a run's text: of one corpus, or of a mixture with these weights."""
    if len(metas) == 1:
        return metas[0].fingerprint
    mixed = [f"{weight!r} {meta.fingerprint}" for weight, meta in zip(weights, metas, strict=True)]
    return hashlib.sha256(" ".join(mixed).encode()).hexdigest()


def fingerprint(directory: Path, tokenizer: Tokenizer) -> str:
    """Return the hexadecimal SHA-256 of a prepared corpus's tokens and tokenizer."""
    digest = hashlib.sha256(tokenizer.definition)
    for name in ("train.bin", "heldout.bin", *DOCUMENT_FILES):
        path = directory / name
        if name in DOCUMENT_FILES and not path.exists():
            continue
        digest.update(path.stat().st_size.to_bytes(8, "big"))
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
