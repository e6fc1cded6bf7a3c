"""What JAX has compiled, kept in the bucket beside the checkpoints: there it outlives the TPU.

A TPU that is preempted takes its disks along, ``JAX_COMPILATION_CACHE_DIR`` among them, and the
next attempt would compile all of it again. JAX can have its cache in the bucket itself, but reads
it program by program, and waits for long where the bucket is away (docs/decisions/0006). Here all
programs come at once before the first is needed, and new ones go there while the run trains.
"""

import logging
import os
import threading
import time
from pathlib import Path

import jax

from train.contract import Contract, files_at

log = logging.getLogger(__name__)

FOLDER = "compiled"
PROGRAM = "*-cache"
"""Names of JAX's programs (jax/_src/lru_cache.py); what it writes beside them is its own."""
EVERY_SECONDS = 10
SETTLED_SECONDS = 2
"""JAX writes a program in place: one that is younger may be half of it, and goes the next time."""


def carry(contract: Contract) -> None:
    """Fetch the run's programs, and from now on keep the new ones.

    To be called once the processes have joined, before anything is compiled. There is nothing to
    do where checkpoints are in a directory, or where JAX has no cache or one in a bucket.
    """
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    if isinstance(contract.checkpoints, str) and cache and "://" not in cache:
        alone = jax.default_backend() == "cpu"  # each process has its own programs, says mesh.py
        own = f"/{jax.process_index()}" if alone else ""
        programs = Programs(Path(cache), f"{contract.checkpoints}/{FOLDER}{own}")
        programs.fetch()
        _tell_of_hits(programs.used)
        if alone or jax.process_index() == 0:  # as JAX writes them
            threading.Thread(target=programs.keep_on, daemon=True, name="compiled").start()


class Programs:
    """JAX's programs here, and the run's in the bucket. What goes wrong never stops the run."""

    def __init__(self, cache: Path, place: str) -> None:
        """``place`` is a directory or gs://bucket/prefix of the run's own."""
        self._cache, self._place = cache, place
        self._fs, self._root = files_at(place)
        self._there: set[str] = set()
        self._before: set[str] = set()
        """Those that lay here: other runs use the same cache."""
        self.used: set[str] = set()
        """Those that this process has found here, whoever compiled them."""

    def fetch(self) -> None:
        """Take what the run has there and this worker lacks."""
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            found = self._fs.glob(f"{self._root}/{PROGRAM}")
            self._there = {path.rpartition("/")[2] for path in found}
            lacking = sorted(self._there - self._here())
            partial = [self._cache / f".{name}.{os.getpid()}" for name in lacking]
            if lacking:
                self._fs.get([f"{self._root}/{name}" for name in lacking], [*map(str, partial)])
                log.info("%d compiled programs came from %s", len(lacking), self._place)
            for path, name in zip(partial, lacking, strict=True):
                path.replace(self._cache / name)
        except Exception as err:  # each of gcsfs's, google-auth's and aiohttp's own kinds
            log.warning("%s: not fetched, so it is compiled again: %s", self._place, _line(err))
        self._before = self._here()

    def keep_on(self) -> None:
        """Put there what is new, again and again; say once that it can't be."""
        say = log.warning
        while True:
            time.sleep(EVERY_SECONDS)
            try:
                self.keep()
            except Exception as err:
                say("%s: not kept, so a new TPU compiles again: %s", self._place, _line(err))
                say = log.debug

    def keep(self) -> None:
        """Put there what is new; raises what the bucket's library does."""
        here = self._here(time.time() - SETTLED_SECONDS)
        new = sorted(here - self._there - (self._before - self.used))
        if new:
            files = [str(self._cache / name) for name in new]
            self._fs.put(files, [f"{self._root}/{name}" for name in new])
            self._there |= set(new)

    def _here(self, until: float = float("inf")) -> set[str]:
        """Name the programs that this worker has, written before that unix time."""
        return {path.name for path in self._cache.glob(PROGRAM) if path.stat().st_mtime < until}


def _tell_of_hits(used: set[str]) -> None:
    """Have JAX name what it finds in its cache: that stands in its log alone, below what is shown.

    Should its words change, what another run compiled here is not kept, and nothing else happens.
    """
    jax_log = logging.getLogger("jax._src.compiler")
    shown = jax_log.getEffectiveLevel()

    def hear(record: logging.LogRecord) -> bool:
        if "cache hit" in str(record.msg) and isinstance(record.args, tuple):
            used.add(f"{record.args[-1]}-cache")
        return record.levelno >= shown

    jax_log.addFilter(hear)
    jax_log.setLevel(logging.DEBUG)


def _line(err: Exception) -> str:
    return f"{type(err).__name__}: {' '.join(str(err).split())}"
