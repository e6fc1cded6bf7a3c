"""Where text comes from: files, a package with a corpus in it, a Hugging Face dataset.

A source has a name, a digest that says which text it is without reading it as tokens, and
``read``, which gives its texts one after the other, as often as it is called.
"""

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
from train.contract import in_one_line
from train.strict import ConfigError

PACKAGED = {"shakespeare": "shksprdata/texts/*_gut.txt"}
"""Corpora that come as a package: its requirements, with hashes, are ``corpora/<name>.txt``."""

UV_PLACES = (Path("/opt/tpufleet/bin/uv"), Path(sys.executable).parent / "uv")
"""Where uv is on a worker and in an environment of one's own, if it isn't on PATH."""

READ_AT_ONCE = 1 << 20
"""Characters of a file that are one piece, cut at a line's end: no file need fit into memory."""

_CORPORA = Path(__file__).parent / "corpora"


class CorpusError(Exception):
    """Text that could not be had; the text is one line that says why and what helps."""


@dataclass(frozen=True)
class Source:
    """Text to be had: each text comes in pieces, whose concatenation it is."""

    name: str
    digest: str
    read: Callable[[], Iterator[Iterator[str]]]


def source(cfg: DataConfig, root: Path) -> Source:
    """Say where a config's text comes from; ``root`` is where what is fetched may be kept.

    Raises ConfigError for a corpus, path or dataset directory that doesn't exist.
    """
    if cfg.text is not None:
        paths = files(cfg.text)
        return Source(_word(Path(cfg.text).stem), digest_of(paths), lambda: map(_pieces, paths))
    if cfg.dataset.id is not None:
        return _dataset(cfg.dataset, root)
    if cfg.corpus not in PACKAGED:
        raise ConfigError(
            f"data.corpus: {cfg.corpus!r} is not known; known are {', '.join(PACKAGED)}; "
            "text files of your own go into data.text, a dataset of the hub into data.dataset.id"
        )
    requirements = _CORPORA / f"{cfg.corpus}.txt"

    def read() -> Iterator[Iterator[str]]:
        with fetched_package(requirements, PACKAGED[cfg.corpus]) as paths:
            yield from map(_pieces, paths)

    return Source(cfg.corpus, digest_of([requirements]), read)


def files(pattern: str) -> list[Path]:
    """Find the files of a path or glob pattern, by name; raises ConfigError if there are none."""
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
    """SHA-256 of the files' contents, each with its length before it, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            inner = hashlib.file_digest(file, "sha256")
        digest.update(path.stat().st_size.to_bytes(8, "big") + inner.digest())
    return digest.hexdigest()


@contextmanager
def fetched_package(requirements: Path, pattern: str) -> Iterator[list[Path]]:
    """Install the one package of a requirements file, checked by hash, for as long as it is read.

    Gives its text files in the order of their names. Raises CorpusError with uv's last words.
    """
    with tempfile.TemporaryDirectory(prefix="tpufleet-corpus-") as target:
        # --no-cache: the trainer's user has no home on a worker, and this runs once there.
        command = [find_uv(), "pip", "install", "--quiet", "--no-cache", "--no-deps"]
        command += ["--python", sys.executable, "--target", target]
        command += ["--require-hashes", "-r", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = " ".join(done.stderr.split())[-400:]
            raise CorpusError(f"{requirements.stem}: uv could not install the corpus: {why}")
        paths = sorted(Path(target).glob(pattern))
        if not paths:
            raise CorpusError(f"{requirements.stem}: the package holds no {pattern}")
        yield paths


def find_uv() -> str:
    """Find uv on PATH, where a worker has it, or beside this Python; raises CorpusError."""
    beside = next((str(place) for place in UV_PLACES if os.access(place, os.X_OK)), None)
    found = shutil.which("uv") or beside
    if found is None:
        places = " or ".join(map(str, UV_PLACES))
        raise CorpusError(f"uv: not found on PATH, nor as {places}; needed to fetch a corpus")
    return found


def _pieces(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        while lines := file.readlines(READ_AT_ONCE):
            yield "".join(lines)


def _word(text: str) -> str:
    """A word for the directory's name; the digest behind it is what tells corpora apart."""
    word = "".join(c if c.isalnum() else "-" for c in text).strip("-")
    return word[:40] or "text"


def _dataset(cfg: DatasetConfig, root: Path) -> Source:
    if importlib.util.find_spec("datasets") is None:
        raise ConfigError(
            "data.dataset.id: needs the package datasets, which is not installed here; "
            "lock it beside what workers have and name that file by jax_lock (docs/setup.md)"
        )
    directory = Path(str(cfg.id)).expanduser()
    what = (cfg.id, cfg.name, cfg.split, cfg.text_key)
    digest = hashlib.sha256(repr(what).encode())
    if directory.is_dir():
        digest.update(digest_of(sorted(p for p in directory.rglob("*") if p.is_file())).encode())
    elif str(cfg.id).startswith((".", "/", "~")):
        raise ConfigError(f"data.dataset.id: {cfg.id} is no directory, and no owner/name either")
    cache = cfg.cache_dir or str(root / "huggingface")
    if "://" in cache and not cfg.split.isidentifier():
        raise ConfigError(
            f"data.dataset.split: must be the name of a split where cache_dir is a bucket, "
            f"not {cfg.split!r}"
        )

    def read() -> Iterator[Iterator[str]]:
        for row in _rows(cfg, cache):
            yield iter((row[cfg.text_key] or "",))

    return Source(_word(str(cfg.id).strip("/").rpartition("/")[2]), digest.hexdigest(), read)


def _rows(cfg: DatasetConfig, cache: str) -> Any:
    """Load the rows of the split; raises ConfigError for what it lacks, CorpusError else."""
    import datasets

    datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(cfg.id, cfg.name, cache_dir=_local(cache, cfg))
        place = _keep(builder, cfg, cache)
        if cfg.split.partition("[")[0] not in builder.info.splits:
            known = ", ".join(builder.info.splits)
            raise ConfigError(f"data.dataset.split: {cfg.id} has no {cfg.split!r}; it has {known}")
        rows = _parquet_rows(place, cfg) if place else builder.as_dataset(split=cfg.split)
    except ConfigError:
        raise
    except ValueError as err:  # an unknown configuration or split; the library lists those known
        raise ConfigError(f"data.dataset: {cfg.id}: {in_one_line(err)}") from err
    except Exception as err:  # the hub's and every file format's own errors
        raise CorpusError(
            f"data.dataset.id: {cfg.id} could not be had: {in_one_line(err)}"
        ) from err
    columns = rows.column_names or []
    if cfg.text_key not in columns:
        raise ConfigError(
            f"data.dataset.text_key: {cfg.id} has no column {cfg.text_key!r}; "
            f"it has {', '.join(columns)}"
        )
    return rows


def _local(cache: str, cfg: DatasetConfig) -> str | None:
    return None if "://" in cache else cache


def _keep(builder: Any, cfg: DatasetConfig, cache: str) -> str | None:
    """Fetch the dataset if it isn't there yet; give its place if that is a bucket."""
    if "://" not in cache:
        builder.download_and_prepare()
        return None
    place = f"{cache.rstrip('/')}/{_word(str(cfg.id))}-{builder.hash}"
    builder.download_and_prepare(place, file_format="parquet")
    return place


def _parquet_rows(place: str, cfg: DatasetConfig) -> Any:
    import datasets
    import fsspec

    system = fsspec.core.url_to_fs(place)[0]
    shards = [f"{place}/*-{cfg.split}.parquet", f"{place}/*-{cfg.split}-*-of-*.parquet"]
    found = [shard for shard in shards if system.glob(shard)]
    return datasets.load_dataset("parquet", data_files=found, split="train", streaming=True)
