"""Sources of text: files, a package that contains a corpus, a Hugging Face dataset."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.config import DataConfig, DatasetConfig
from train.contract import one_line
from train.strict import ConfigError

PACKAGED = {"shakespeare": "shksprdata/texts/*_gut.txt"}
"""Corpora in Python packages: glob pattern of the text files, by name of the corpus. The file
``corpora/<name>.txt`` pins the package, with hashes."""

UV_PATHS = (Path("/opt/tpufleet/bin/uv"), Path(sys.executable).parent / "uv")
"""Paths of uv on a worker and in a virtual environment, for when uv is not on PATH."""

CHUNK_CHARACTERS = 1 << 20
"""Characters read at once, approximately, so that files need not fit in memory."""

_CORPORA = Path(__file__).parent / "corpora"


class CorpusError(Exception):
    """Failure to load a text; the message is one line with the reason and the fix."""


@dataclass(frozen=True)
class Source:
    """Text of a corpus. Each call of ``read`` returns its documents, each an iterator of chunks.

    ``digest`` identifies the text and is computed without tokenizing it.
    """

    name: str
    digest: str
    read: Callable[[], Iterator[Iterator[str]]]


def source(cfg: DataConfig, root: Path) -> Source:
    """Return the text that a config selects; by default, datasets are cached below ``root``.

    Raises ConfigError for a corpus, path or dataset directory that does not exist.
    """
    if cfg.text is not None:
        paths = files(cfg.text)
        return Source(_slug(Path(cfg.text).stem), digest_of(paths), lambda: map(_chunks, paths))
    if cfg.dataset.id is not None:
        return _dataset(cfg.dataset, root)
    if cfg.corpus not in PACKAGED:
        raise ConfigError(
            f"data.corpus: {cfg.corpus!r} is unknown; available: {', '.join(PACKAGED)}; "
            "for your own text set data.text, for a dataset data.dataset.id"
        )
    requirements = _CORPORA / f"{cfg.corpus}.txt"

    def read() -> Iterator[Iterator[str]]:
        with installed_package(requirements, PACKAGED[cfg.corpus]) as paths:
            yield from map(_chunks, paths)

    return Source(cfg.corpus, digest_of([requirements]), read)


def files(pattern: str) -> list[Path]:
    """List the files that match a path or glob pattern, sorted; raises ConfigError if none do."""
    path = Path(pattern).expanduser()
    inside = str(path.relative_to(path.anchor))
    found = [path] if path.is_file() else sorted(Path(path.anchor or ".").glob(inside))
    paths = [path for path in found if path.is_file()]
    if not paths:
        raise ConfigError(f"data.text: no file matches {pattern}")
    if unreadable := [path for path in paths if not os.access(path, os.R_OK)]:
        raise ConfigError(f"data.text: {unreadable[0]} cannot be read")
    return paths


def digest_of(paths: list[Path]) -> str:
    """Return the hexadecimal SHA-256 of the files' lengths and contents."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            inner = hashlib.file_digest(file, "sha256")
        digest.update(path.stat().st_size.to_bytes(8, "big") + inner.digest())
    return digest.hexdigest()


@contextmanager
def installed_package(requirements: Path, pattern: str) -> Iterator[list[Path]]:
    """Install a requirements file to a temporary directory, with hash checks.

    Yields the files there that match ``pattern``, sorted. Raises CorpusError with uv's output.
    """
    with tempfile.TemporaryDirectory(prefix="tpufleet-corpus-") as target:
        # --no-cache: on a worker this runs once, as a user without a home directory.
        command = [find_uv(), "pip", "install", "--quiet", "--no-cache", "--no-deps"]
        command += ["--python", sys.executable, "--target", target]
        command += ["--require-hashes", "-r", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = " ".join(done.stderr.split())[-400:]
            raise CorpusError(f"{requirements.stem}: uv could not install the corpus: {why}")
        paths = sorted(Path(target).glob(pattern))
        if not paths:
            raise CorpusError(f"{requirements.stem}: the package contains no {pattern}")
        yield paths


def find_uv() -> str:
    """Return the path of uv, from PATH or UV_PATHS; raises CorpusError if there is none."""
    executable = next((str(path) for path in UV_PATHS if os.access(path, os.X_OK)), None)
    found = shutil.which("uv") or executable
    if found is None:
        paths = " or ".join(map(str, UV_PATHS))
        raise CorpusError(f"uv: not found on PATH, nor as {paths}; install it to download a corpus")
    return found


def _chunks(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        while lines := file.readlines(CHUNK_CHARACTERS):
            yield "".join(lines)


def _slug(text: str) -> str:
    """Shorten a name for use in a directory name; it need not be unique."""
    slug = "".join(c if c.isalnum() else "-" for c in text).strip("-")
    return slug[:40] or "text"


def _dataset(cfg: DatasetConfig, root: Path) -> Source:
    if importlib.util.find_spec("datasets") is None:
        raise ConfigError(
            "data.dataset.id: needs the package datasets, which is not installed; "
            "add it to a lock file and set jax_lock to that file (docs/setup.md)"
        )
    directory = Path(str(cfg.id)).expanduser()
    selection = (cfg.id, cfg.name, cfg.split, cfg.text_key)
    digest = hashlib.sha256(repr(selection).encode())
    if directory.is_dir():
        digest.update(digest_of(sorted(p for p in directory.rglob("*") if p.is_file())).encode())
    elif str(cfg.id).startswith((".", "/", "~")):
        raise ConfigError(f"data.dataset.id: {cfg.id} is neither a directory nor owner/name")
    cache = cfg.cache_dir or str(root / "huggingface")
    if "://" in cache and not cfg.split.isidentifier():
        raise ConfigError(
            f"data.dataset.split: must be the name of a split if cache_dir is a bucket, "
            f"not {cfg.split!r}"
        )

    def read() -> Iterator[Iterator[str]]:
        for row in _rows(cfg, cache):
            yield iter((row[cfg.text_key] or "",))

    return Source(_slug(str(cfg.id).strip("/").rpartition("/")[2]), digest.hexdigest(), read)


def _rows(cfg: DatasetConfig, cache: str) -> Any:
    """Return the dataset's rows.

    Raises ConfigError for a missing split or column, CorpusError if loading fails otherwise.
    """
    import datasets

    datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(cfg.id, cfg.name, cache_dir=_local(cache, cfg))
        location = _download(builder, cfg, cache)
        if cfg.split.partition("[")[0] not in builder.info.splits:
            known = ", ".join(builder.info.splits)
            raise ConfigError(f"data.dataset.split: {cfg.id} has no {cfg.split!r}; it has {known}")
        rows = _parquet_rows(location, cfg) if location else builder.as_dataset(split=cfg.split)
    except ConfigError:
        raise
    except (
        ValueError
    ) as err:  # an unknown configuration or split; the message lists the available ones
        raise ConfigError(f"data.dataset: {cfg.id}: {one_line(err)}") from err
    except Exception as err:  # the hub and the file formats raise their own types
        raise CorpusError(f"data.dataset.id: {cfg.id} cannot be loaded: {one_line(err)}") from err
    columns = rows.column_names or []
    if cfg.text_key not in columns:
        raise ConfigError(
            f"data.dataset.text_key: {cfg.id} has no column {cfg.text_key!r}; "
            f"it has {', '.join(columns)}"
        )
    return rows


def _local(cache: str, cfg: DatasetConfig) -> str | None:
    return None if "://" in cache else cache


def _download(builder: Any, cfg: DatasetConfig, cache: str) -> str | None:
    """Download the dataset if necessary; return its location in the bucket, None if local."""
    if "://" not in cache:
        builder.download_and_prepare()
        return None
    location = f"{cache.rstrip('/')}/{_slug(str(cfg.id))}-{builder.hash}"
    builder.download_and_prepare(location, file_format="parquet")
    return location


def _parquet_rows(location: str, cfg: DatasetConfig) -> Any:
    import datasets
    import fsspec

    system = fsspec.core.url_to_fs(location)[0]
    shards = [f"{location}/*-{cfg.split}.parquet", f"{location}/*-{cfg.split}-*-of-*.parquet"]
    found = [shard for shard in shards if system.glob(shard)]
    return datasets.load_dataset("parquet", data_files=found, split="train", streaming=True)
