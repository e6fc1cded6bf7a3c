"""JAX's compilation cache of a run whose checkpoints are in a bucket.

A preempted TPU loses its disks, and with them JAX's cache, so the next attempt would compile
everything again. JAX can use a bucket as its cache, but then reads one program at a time and waits
long if the bucket is unreachable (docs/decisions/0006). Therefore JAX's cache is a local directory
of this process. This module fills the directory from the bucket before the first compilation, and
uploads new programs during training.
"""

import logging
import os
import threading
import time
from itertools import batched
from pathlib import Path

import jax

from train.run.contract import Contract
from train.storage import logged_errors, one_line, open_filesystem

log = logging.getLogger(__name__)

FOLDER = "compiled"
"""Name of the cache in the run directory, and of its copy beside the checkpoints."""
BATCH_FILES = 8
"""Number of programs that are downloaded at once and held in memory."""
UPLOAD_INTERVAL_SECONDS = 10
SETTLE_SECONDS = 2
"""Minimum age of a cache entry that is uploaded: JAX writes entries in place, so a newer entry may
be incomplete."""


def sync(contract: Contract) -> None:
    """Keep the run's compiled programs beside its checkpoints, if the checkpoints are in a bucket.

    Call this before anything is compiled. Does nothing if JAX_COMPILATION_CACHE_DIR is a bucket,
    which JAX then uses itself.
    """
    own_bucket = "://" in os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    if isinstance(contract.checkpoints, str) and not own_bucket:
        cache = contract.run_dir / FOLDER
        programs = Programs(cache, f"{contract.checkpoints}/{FOLDER}")
        programs.download()
        jax.config.update("jax_compilation_cache_dir", str(cache))
        if contract.process_id == 0:  # in other processes, JAX writes no cache
            threading.Thread(target=programs.upload_periodically, daemon=True).start()


class Programs:
    """Compiled programs in JAX's cache, and their copies in the run's bucket."""

    def __init__(self, cache: Path, location: str) -> None:
        """Open the location of the copies, a path or gs://bucket/prefix.

        ``cache`` is JAX's cache directory.
        """
        self._cache, self._location = cache, location
        self._fs, self._root = open_filesystem(location)
        self._uploaded: set[str] = set()

    def download(self) -> None:
        """Make the cache equal to the bucket; a failure is only logged.

        Programs that are only in the cache are removed: a kill may have left them incomplete, and
        JAX would neither use nor replace such files.
        """
        with logged_errors(
            f"{self._location}: compiled programs cannot be downloaded, so they are compiled again"
        ):
            self._cache.mkdir(parents=True, exist_ok=True)
            uploaded = {
                path.rpartition("/")[2]: info["size"]
                for path, info in self._fs.glob(f"{self._root}/*", detail=True).items()
                if info["type"] == "file"
            }
            cached = {path.name: path.stat().st_size for path in self._files()}
            for name in cached.keys() - uploaded.keys():
                (self._cache / name).unlink()
            self._uploaded = set(uploaded)
            missing = sorted(name for name in uploaded if cached.get(name) != uploaded[name])
            # gcsfs's method get would send two more requests per object than its method cat.
            for batch in batched(missing, BATCH_FILES):
                for path, content in self._fs.cat([f"{self._root}/{n}" for n in batch]).items():
                    (self._cache / path.rpartition("/")[2]).write_bytes(content)
            if missing:
                log.info("downloaded %d compiled programs from %s", len(missing), self._location)

    def upload_periodically(self) -> None:
        """Upload new programs until the process exits; warn of the first failure only."""
        report = log.warning
        while True:
            time.sleep(UPLOAD_INTERVAL_SECONDS)
            try:
                self.upload()
            except Exception as err:
                if threading.main_thread().is_alive():
                    report(
                        "%s: programs cannot be uploaded, so a new TPU compiles them again: %s",
                        self._location,
                        one_line(err),
                    )
                report = log.debug

    def upload(self) -> None:
        """Upload the programs that are new and complete; raises the errors of gcsfs."""
        settled = time.time() - SETTLE_SECONDS
        for path in self._files():
            if path.name not in self._uploaded and path.stat().st_mtime < settled:
                self._fs.put_file(str(path), f"{self._root}/{path.name}")
                self._uploaded.add(path.name)

    def _files(self) -> list[Path]:
        """Return the files of compiled programs in the local cache.

        Skips the directories that XLA adds to the cache on a GPU.
        """
        return [path for path in self._cache.iterdir() if path.is_file()]
