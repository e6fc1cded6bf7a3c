"""Copy of JAX's compilation cache in the bucket beside the checkpoints, where it outlives the TPU.

A preempted TPU loses its disks, and with them ``JAX_COMPILATION_CACHE_DIR``, so the next attempt
would compile everything again. JAX can use a bucket as its cache, but then reads one program at a
time and waits long if the bucket is unreachable (docs/decisions/0006). This module downloads all
compiled programs at once, before the first compilation, and uploads new ones during training.
"""

import atexit
import logging
import os
import tempfile
import threading
import time
from itertools import batched
from pathlib import Path

import jax
from jax._src.compilation_cache import decompress_executable

from train.contract import Contract, one_line, open_filesystem

log = logging.getLogger(__name__)

FOLDER = "compiled"
SUFFIX = "-cache"
"""Suffix of programs in JAX's cache (jax/_src/lru_cache.py); other files are not copied."""
BATCH_FILES = 8
"""Number of programs that are downloaded at once and held in memory."""
UPLOAD_INTERVAL_SECONDS = 10
SETTLE_SECONDS = 2
"""JAX writes cache entries in place, so entries newer than this wait for the next upload."""
JAX_LOGS = ("jax._src.compiler", "jax._src.compilation_cache")
CACHE_LOG_PHRASES = ("cache hit for", "to persistent compilation cache with key")


def sync(contract: Contract) -> None:
    """Download the run's compiled programs, and start a thread that uploads those it uses.

    Call this after ``mesh.join`` and before anything is compiled. Does nothing if checkpoints are
    not in a bucket, if JAX has no compilation cache, or if that cache is in a bucket itself.
    """
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    if isinstance(contract.checkpoints, str) and cache and "://" not in cache:
        # On CPU, each process writes its own programs (see mesh.py), else only process 0 writes.
        alone = jax.default_backend() == "cpu"
        own = f"/{contract.process_id}" if alone else ""
        programs = Programs(Path(cache), f"{contract.checkpoints}/{FOLDER}{own}")
        programs.fetch()
        if alone or contract.process_id == 0:
            record_used_programs(programs.used)
            stop = threading.Event()
            atexit.register(stop.set)
            threading.Thread(target=programs.upload_periodically, args=[stop], daemon=True).start()


class Programs:
    """Compiled programs in JAX's local cache, and their copies in the run's bucket."""

    def __init__(self, cache: Path, location: str) -> None:
        """Use ``location``, a directory or gs://bucket/prefix of the run, for the copies."""
        self._cache, self._location = cache, location
        self._fs, self._root = open_filesystem(location)
        self._uploaded: set[str] = set()
        self.used: set[str] = set()
        """File names of the programs of this run; other runs may share the local cache."""

    def fetch(self) -> None:
        """Download the programs that are missing in the local cache; only log a failure."""
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            found = self._fs.glob(f"{self._root}/*{SUFFIX}")
            self._uploaded = {path.rpartition("/")[2] for path in found}
            missing = sorted(name for name in self._uploaded if not (self._cache / name).exists())
            with tempfile.TemporaryDirectory(dir=self._cache, prefix=".") as partial:
                if missing:
                    # cat, not get: get makes two more requests per object.
                    for batch in batched(missing, BATCH_FILES):
                        paths = [f"{self._root}/{name}" for name in batch]
                        for path, content in self._fs.cat(paths).items():
                            (Path(partial) / path.rpartition("/")[2]).write_bytes(content)
                    log.info(
                        "downloaded %d compiled programs from %s", len(missing), self._location
                    )
                for path in filter(is_complete, Path(partial).iterdir()):
                    path.replace(self._cache / path.name)
        except Exception as err:  # gcsfs, google-auth and aiohttp raise their own types
            log.warning(
                "%s: can't be downloaded, so programs are compiled again: %s",
                self._location,
                one_line(err),
            )

    def upload_periodically(self, stop: threading.Event) -> None:
        """Upload new programs until ``stop`` is set; warn of the first failure only."""
        report = log.warning
        while not stop.wait(UPLOAD_INTERVAL_SECONDS):
            try:
                self.upload()
            except Exception as err:
                if not stop.is_set():
                    report(
                        "%s: not uploaded, so a new TPU compiles again: %s",
                        self._location,
                        one_line(err),
                    )
                report = log.debug

    def upload(self) -> None:
        """Upload the used programs that are complete and new; raises the errors of gcsfs."""
        settled = time.time() - SETTLE_SECONDS
        for path in [self._cache / name for name in sorted(self.used.copy() - self._uploaded)]:
            if path.exists() and path.stat().st_mtime < settled and is_complete(path):
                self._fs.put_file(str(path), f"{self._root}/{path.name}")
                self._uploaded.add(path.name)


def is_complete(program: Path) -> bool:
    """Return whether a program can be decompressed; a full disk may have truncated it."""
    try:
        decompress_executable(program.read_bytes())
    except Exception:  # JAX uses zlib or zstandard, with different errors
        return False
    return True


def record_used_programs(used: set[str]) -> None:
    """Add to ``used`` the file name of each program that JAX reads from or writes to its cache.

    JAX reports these programs only in its debug log. If its messages change, nothing is uploaded,
    and tests/train/test_compile_cache.py fails.
    """

    def record_program(record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and any(
            phrase in str(record.msg) for phrase in CACHE_LOG_PHRASES
        ):
            used.add(f"{record.args[-1]}{SUFFIX}")
        return record.levelno >= shown

    shown = logging.getLogger(JAX_LOGS[0]).getEffectiveLevel()
    for name in JAX_LOGS:
        logging.getLogger(name).addFilter(record_program)
        logging.getLogger(name).setLevel(logging.DEBUG)
