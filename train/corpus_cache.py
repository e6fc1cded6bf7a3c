"""Copy of a run's prepared corpus in the bucket beside the checkpoints, where it outlives the TPU.

A preempted TPU loses its disks. Without the copy, every worker of the next TPU would prepare the
corpus again: download it from a package registry or the Hugging Face Hub, and tokenize it.
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
"""Larger corpora are not uploaded, because each run stores its own copy. For large datasets,
``data.dataset.cache_dir`` can be a bucket."""


def prepared(cfg: DataConfig, contract: Contract) -> Path:
    """Download or prepare the corpus, unless this machine has it, and return its directory.

    Process 0 uploads it to the run's bucket in the background. Raises the errors of ``prepare``.
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
    """Prepared corpora in the run's bucket. Failures are logged and never stop the run."""

    def __init__(self, location: str) -> None:
        """Use ``location``, a directory or gs://bucket/prefix of the run."""
        self._location = location
        self._is_damaged = False
        self._exiting = threading.Event()
        atexit.register(self._exiting.set)

    def fetch(self, directory: Path) -> bool:
        """Download the corpus to ``directory`` if the bucket has it; return whether it is there."""
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
            if not (directory / META).exists():  # else another process finished first
                log.warning(
                    "%s: can't be downloaded, so the corpus is prepared again: %s",
                    self._location,
                    one_line(err),
                )
                return False
        log.info("downloaded the prepared corpus from %s", self._location)
        return True

    def upload(self, directory: Path) -> None:
        """Upload a prepared corpus, unless it is too large or the bucket has an intact copy."""
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
                    "%s: the corpus can't be uploaded, so a new TPU prepares it again: %s",
                    self._location,
                    one_line(err),
                )
