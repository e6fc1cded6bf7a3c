"""Sources of text: files, a package that contains a corpus, a Hugging Face dataset."""

import gzip
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any

from train.data.config import DatasetConfig, SourceConfig
from train.data.files import InputFile, digest_of, find
from train.storage import one_line, temporary_directory
from train.strict import ConfigError

PACKAGED = {"shakespeare": "shksprdata/texts/*_gut.txt"}
"""Corpora in Python packages: glob pattern of the text files, by name of the corpus. The file
``corpora/<name>.txt`` pins the package, with hashes."""

UV_PATHS = (Path("/opt/tpufleet/bin/uv"), Path(sys.executable).parent / "uv")
"""Paths of uv on a worker and in a virtual environment, for when uv is not on PATH."""

CHUNK_CHARACTERS = 1 << 20
"""Characters per chunk, before it is extended to the end of a line, at most to twice as many."""

JSON_LINES = ".jsonl"
"""Suffix of files in which each line is a document."""

GZIP = ".gz"
"""Further suffix of files that gzip has compressed."""

_CORPORA = Path(__file__).parent / "corpora"


class CorpusError(Exception):
    """Failure to load a text; the message is one line with the reason and the fix."""


@dataclass(frozen=True)
class Row:
    """A row of a dataset or a line of JSON; ``origin`` names it in errors."""

    origin: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """Text of a corpus.

    ``digest`` identifies the text and is computed without tokenizing it. ``read()`` iterates over
    the documents; a document is an iterator of chunks of text. ``rows()`` iterates over the rows of
    JSON lines or a dataset; ``rows`` is None for plain text.
    """

    name: str
    digest: str
    read: Callable[[], Iterator[Iterator[str]]]
    rows: Callable[[], Iterator[Row]] | None = None


def source(cfg: SourceConfig, root: Path) -> Source:
    """Return the text that a config selects; datasets are cached below ``root``.

    Raises ConfigError for a corpus, path or dataset directory that does not exist.
    """
    if cfg.text is not None:
        return _files(cfg.text, cfg.dataset.text_key)
    if cfg.dataset.id is not None:
        return _dataset(cfg.dataset, root)
    if cfg.corpus not in PACKAGED:
        raise ConfigError(
            f"data.corpus: {cfg.corpus!r} is unknown; available: {', '.join(PACKAGED)}. "
            "For your own text, set data.text; for a dataset, set data.dataset.id"
        )
    requirements = _CORPORA / f"{cfg.corpus}.txt"

    def read() -> Iterator[Iterator[str]]:
        with installed_package(requirements, PACKAGED[cfg.corpus], root) as paths:
            yield from map(_chunks, paths)

    return Source(cfg.corpus, digest_of([requirements]), read)


def _files(pattern: str, key: str) -> Source:
    """Return the files as a source of text; for JSON lines, the text is the value of ``key``."""
    files = find(pattern, "data.text")
    has_rows = [file.name.removesuffix(GZIP).endswith(JSON_LINES) for file in files]
    digest = digest_of(files)
    if any(has_rows) or any(file.name.endswith(GZIP) for file in files):
        digest = hashlib.sha256(f"{digest} {key} {has_rows}".encode()).hexdigest()

    def read() -> Iterator[Iterator[str]]:
        for file, rows in zip(files, has_rows, strict=True):
            yield from (_texts(_json_rows(file), key) if rows else iter((_chunks(file),)))

    rows = (lambda: chain.from_iterable(map(_json_rows, files))) if all(has_rows) else None
    return Source(_slug(Path(pattern).stem), digest, read, rows)


def _json_rows(file: InputFile) -> Iterator[Row]:
    """Parse JSON lines; raises CorpusError for a line that is no JSON object."""
    with _opened(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as err:
                raise CorpusError(f"{file}:{number}: is not JSON: {one_line(err)}") from err
            if not isinstance(values, dict):
                raise CorpusError(f"{file}:{number}: must be a JSON object, not {line[:40]!r}")
            yield Row(f"{file}:{number}", values)


def _texts(rows: Iterator[Row], key: str) -> Iterator[Iterator[str]]:
    """Yield each row's text under ``key``, "" for null; raises ConfigError for a row without it."""
    for row in rows:
        text = row.values.get(key, 0)
        if not isinstance(text, str | None):
            keys = ", ".join(map(str, row.values))[:200]
            raise ConfigError(
                f"data.dataset.text_key: {row.origin} has no text under the key {key!r} "
                f"(its keys: {keys})"
            )
        yield iter((text or "",))


@contextmanager
def installed_package(requirements: Path, pattern: str, root: Path) -> Iterator[list[Path]]:
    """Install a requirements file to a temporary directory below ``root``, with hash checks.

    Yields the files there that match ``pattern``, sorted. Raises CorpusError with uv's output.
    """
    with temporary_directory(root) as target:
        # --no-cache: a worker installs a corpus once, as a user without a home directory.
        command = [find_uv(), "pip", "install", "--quiet", "--no-cache", "--no-deps"]
        command += ["--python", sys.executable, "--target", str(target)]
        command += ["--require-hashes", "-r", str(requirements)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = " ".join(result.stderr.split())[-400:]
            raise CorpusError(f"the corpus {requirements.stem}: uv cannot install it: {reason}")
        paths = sorted(target.glob(pattern))
        if not paths:
            raise CorpusError(
                f"the corpus {requirements.stem}: its package contains no {pattern}. Set "
                "data.text or data.dataset.id instead"
            )
        yield paths


def find_uv() -> str:
    """Return the path of uv, from PATH or UV_PATHS; raises CorpusError if there is none."""
    uv = next(filter(None, map(shutil.which, ("uv", *UV_PATHS))), None)
    if uv is None:
        paths = " or ".join(map(str, UV_PATHS))
        raise CorpusError(f"uv: not found on PATH, nor as {paths}. Install it to download a corpus")
    return str(uv)


def _chunks(path: InputFile) -> Iterator[str]:
    with _opened(path, encoding="utf-8", errors="replace") as file:
        while chunk := file.read(CHUNK_CHARACTERS):
            yield chunk + file.readline(CHUNK_CHARACTERS)


@contextmanager
def _opened(file: InputFile, mode: str = "rt", **options: str) -> Iterator[IO[Any]]:
    """Open a file, and decompress it if its name ends in GZIP.

    Inside the ``with`` block, errors of reading become a CorpusError.
    """
    try:
        if file.name.endswith(GZIP):
            with file.open("rb") as compressed, gzip.open(compressed, mode, **options) as stream:
                yield stream
        else:
            with file.open(mode, **options) as stream:
                yield stream
    except CorpusError:
        raise
    except Exception as err:  # gcsfs, google-auth and aiohttp raise their own error types
        raise CorpusError(f"{file}: cannot be read: {one_line(err)}") from err


def _slug(text: str) -> str:
    """Shorten a name for use in a directory name; it need not be unique."""
    slug = "".join(c if c.isalnum() else "-" for c in text).strip("-")
    return slug[:40] or "text"


def _dataset(cfg: DatasetConfig, root: Path) -> Source:
    if importlib.util.find_spec("datasets") is None:
        raise ConfigError(
            "data.dataset.id: the package datasets is not installed. Add it to worker_extras "
            "in group_vars, then run: ansible-playbook setup.yml"
        )
    directory = Path(str(cfg.id)).expanduser()
    selection = (cfg.id, cfg.name, cfg.split, cfg.text_key)
    digest = hashlib.sha256(repr(selection).encode())
    if directory.is_dir():
        # Use the absolute path: load_dataset regards "text" as a file format, not as ./text.
        cfg = replace(cfg, id=str(directory.absolute()))
        digest.update(digest_of(sorted(p for p in directory.rglob("*") if p.is_file())).encode())
    elif str(cfg.id).startswith((".", "/", "~")):
        raise ConfigError(f"data.dataset.id: {cfg.id} is neither a directory nor owner/name")

    def rows() -> Iterator[Row]:
        for number, row in enumerate(_loaded(cfg, root)):
            yield Row(f"{cfg.id} row {number}", row)

    name = _slug(str(cfg.id).strip("/").rpartition("/")[2])
    return Source(name, digest.hexdigest(), lambda: _texts(rows(), cfg.text_key), rows)


def _loaded(cfg: DatasetConfig, root: Path) -> Any:
    """Download a dataset below ``root`` if necessary; return its rows.

    Raises ConfigError for a missing configuration or split, CorpusError for any other failure.
    """
    import datasets

    datasets.disable_progress_bars()
    cache = str(root / "huggingface")
    try:
        return datasets.load_dataset(cfg.id, cfg.name, split=cfg.split, cache_dir=cache)
    except ValueError as err:  # err lists the valid configurations or splits
        raise ConfigError(f"data.dataset: {cfg.id}: {one_line(err)}") from err
    except Exception as err:  # the hub and file formats raise their own error types
        raise CorpusError(f"data.dataset.id: {cfg.id} cannot be loaded: {one_line(err)}") from err
