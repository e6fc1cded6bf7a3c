"""What JAX has compiled, kept in the bucket beside the checkpoints: there it outlives the TPU.

A TPU that is preempted takes its disks along, ``JAX_COMPILATION_CACHE_DIR`` among them, and the
next attempt would compile all of it again. JAX can have its cache in the bucket itself, but reads
it program by program, and waits for long where the bucket is away (docs/decisions/0006). Here all
programs come at once before the first is needed, and new ones go there while the run trains.
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

from train.contract import Contract, files_at, in_one_line

log = logging.getLogger(__name__)

FOLDER = "compiled"
SUFFIX = "-cache"
"""Of JAX's programs (jax/_src/lru_cache.py); what it writes beside them is its own."""
AT_ONCE = 8
"""How many programs are asked for at once, and held in memory."""
EVERY_SECONDS = 10
SETTLED_SECONDS = 2
"""JAX writes a program in place: one that is younger goes the next time."""
JAX_LOGS = ("jax._src.compiler", "jax._src.compilation_cache")
TELLING = ("cache hit for", "to persistent compilation cache with key")


def carry(contract: Contract) -> None:
    """Fetch the run's programs, and from now on keep those that it finds or writes.

    To be called once the processes have joined, before anything is compiled. There is nothing to
    do where checkpoints are in a directory, or where JAX has no cache or one in a bucket.
    """
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    if isinstance(contract.checkpoints, str) and cache and "://" not in cache:
        alone = jax.default_backend() == "cpu"  # each process has its own programs, says mesh.py
        own = f"/{contract.process_id}" if alone else ""
        programs = Programs(Path(cache), f"{contract.checkpoints}/{FOLDER}{own}")
        programs.fetch()
        if alone or contract.process_id == 0:  # as JAX writes, by the number that it was given
            hear(programs.used)
            over = threading.Event()
            atexit.register(over.set)
            threading.Thread(target=programs.keep_on, args=[over], daemon=True).start()


class Programs:
    """JAX's programs here, and the run's in the bucket. What goes wrong never stops the run."""

    def __init__(self, cache: Path, place: str) -> None:
        """``place`` is a directory or gs://bucket/prefix of the run's own."""
        self._cache, self._place = cache, place
        self._fs, self._root = files_at(place)
        self._there: set[str] = set()
        self.used: set[str] = set()
        """The run's own: other runs may have theirs in the same cache."""

    def fetch(self) -> None:
        """Take what the run has there and this worker lacks."""
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            found = self._fs.glob(f"{self._root}/*{SUFFIX}")
            self._there = {path.rpartition("/")[2] for path in found}
            lacking = sorted(name for name in self._there if not (self._cache / name).exists())
            with tempfile.TemporaryDirectory(dir=self._cache, prefix=".") as partial:
                if lacking:
                    # Not get: that asks a bucket twice what each is before it takes it.
                    for some in batched(lacking, AT_ONCE):
                        paths = [f"{self._root}/{name}" for name in some]
                        for path, content in self._fs.cat(paths).items():
                            (Path(partial) / path.rpartition("/")[2]).write_bytes(content)
                    log.info("%d compiled programs came from %s", len(lacking), self._place)
                for path in filter(whole, Path(partial).iterdir()):
                    path.replace(self._cache / path.name)
        except Exception as err:  # each of gcsfs's, google-auth's and aiohttp's own kinds
            log.warning(
                "%s: not fetched, so it is compiled again: %s", self._place, in_one_line(err)
            )

    def keep_on(self, over: threading.Event) -> None:
        """Put there what is new, again and again; say once that it can't be."""
        say = log.warning
        while not over.wait(EVERY_SECONDS):
            try:
                self.keep()
            except Exception as err:
                if not over.is_set():
                    say(
                        "%s: not kept, so a new TPU compiles again: %s",
                        self._place,
                        in_one_line(err),
                    )
                say = log.debug

    def keep(self) -> None:
        """Put there what is new and whole; raises what the bucket's library does."""
        settled = time.time() - SETTLED_SECONDS
        for path in [self._cache / name for name in sorted(self.used.copy() - self._there)]:
            if path.exists() and path.stat().st_mtime < settled and whole(path):
                self._fs.put_file(str(path), f"{self._root}/{path.name}")
                self._there.add(path.name)


def whole(program: Path) -> bool:
    """Tell whether a program can be read: a full disk may have left half of it."""
    try:
        decompress_executable(program.read_bytes())
    except Exception:  # of zlib or zstandard, as JAX finds them
        return False
    return True


def hear(used: set[str]) -> None:
    """Have JAX name what it finds in its cache and what it writes there.

    It does so in its log alone, below what is shown. Should its words change, nothing is kept, and
    tests/train/test_compiled.py tells.
    """

    def heard(record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and any(word in str(record.msg) for word in TELLING):
            used.add(f"{record.args[-1]}{SUFFIX}")
        return record.levelno >= shown

    shown = logging.getLogger(JAX_LOGS[0]).getEffectiveLevel()
    for name in JAX_LOGS:
        logging.getLogger(name).addFilter(heard)
        logging.getLogger(name).setLevel(logging.DEBUG)
