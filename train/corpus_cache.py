"""Copy of a run's prepared corpus in the bucket beside the checkpoints, where it outlives the TPU.

A preempted TPU loses its disks. Without the copy, every worker of the next one would prepare the
corpus again, and download it from a registry or the hub in the middle of a run.
"""

import atexit
import logging
import tempfile
import threading
from pathlib import Path

from train.config import DataConfig
from train.contract import Contract, one_line, open_filesystem
from train.corpus import fingerprint, prepare, read_meta, read_tokenizer

log = logging.getLogger(__name__)

FOLDER = "corpus"
META = "meta.json"
"""Uploaded last, so that a partial upload does not count as a corpus."""
THREAD_NAME = "keep-corpus"
LARGEST_BYTES = 4 << 30
"""Larger corpora are not uploaded, because each run has its own copy. For large datasets,
``data.dataset.cache_dir`` can be a bucket."""


def prepared(cfg: DataConfig, contract: Contract) -> Path:
    """Return the directory of the prepared corpus: local, from the run's bucket, or newly prepared.

    Process 0 uploads it to the bucket in the background. Raises as ``prepare`` does.
    """
    if not isinstance(contract.checkpoints, str):
        return prepare(cfg)
    cache = CorpusCache(f"{contract.checkpoints}/{FOLDER}")
    directory = prepare(cfg, cache.fetch)
    if contract.process_id == 0:
        threading.Thread(
            target=cache.upload, args=[directory], name=THREAD_NAME, daemon=True
        ).start()
    return directory


class CorpusCache:
    """Prepared corpora in a bucket, by name. Failures never stop the run."""

    def __init__(self, location: str) -> None:
        """``location`` is a directory or gs://bucket/prefix of this run."""
        self._location = location
        self._is_damaged = False
        self._exiting = threading.Event()
        atexit.register(self._exiting.set)

    def fetch(self, directory: Path) -> bool:
        """Download a complete corpus to ``directory``; return whether there was one."""
        try:
            files, root = open_filesystem(f"{self._location}/{directory.name}")
            try:
                meta_json = files.cat_file(f"{root}/{META}")
            except FileNotFoundError:
                return False
            self._is_damaged = True
            with tempfile.TemporaryDirectory(prefix=".kept-", dir=directory.parent) as partial:
                new = Path(partial) / "corpus"
                new.mkdir()
                for path in files.ls(root, detail=False):
                    if not path.endswith(f"/{META}"):
                        files.get_file(path, str(new / path.rpartition("/")[2]))
                (new / META).write_bytes(meta_json)
                meta = read_meta(new)
                if fingerprint(new, read_tokenizer(new, meta)) != meta.fingerprint:
                    raise ValueError("its fingerprint differs from meta.json")
                new.rename(directory)
            self._is_damaged = False
        except Exception as err:  # gcsfs, google-auth and aiohttp raise their own types
            if not (directory / META).exists():  # else another process was first
                log.warning(
                    "%s: not fetched, so the corpus is prepared again: %s",
                    self._location,
                    one_line(err),
                )
                return False
        log.info("the prepared corpus came from %s", self._location)
        return True

    def upload(self, directory: Path) -> None:
        """Upload a prepared corpus if the bucket has none, or a damaged one."""
        try:
            read_meta(directory)
            files, root = open_filesystem(f"{self._location}/{directory.name}")
            found = sorted(directory.iterdir(), key=lambda path: path.name == META)
            if sum(path.stat().st_size for path in found) > LARGEST_BYTES:
                return
            if self._is_damaged or not files.exists(f"{root}/{META}"):
                for path in found:
                    files.put_file(str(path), f"{root}/{path.name}")
        except Exception as err:
            if not self._exiting.is_set():
                log.warning(
                    "%s: not uploaded, so a new TPU prepares it again: %s",
                    self._location,
                    one_line(err),
                )
