"""A run's prepared corpus, kept in the bucket beside the checkpoints: there it outlives the TPU.

A TPU that is preempted takes its disks along. To prepare its corpus again would take every worker
of the next one as long as the first time, and ask a registry or the hub in the middle of a run.
"""

import atexit
import logging
import tempfile
import threading
from pathlib import Path

from train.config import DataConfig
from train.contract import Contract, files_at, in_one_line
from train.corpus import fingerprint, prepare, read_meta, read_tokenizer

log = logging.getLogger(__name__)

FOLDER = "corpus"
META = "meta.json"
"""Of a prepared corpus; it goes last, so that half of one is none."""
SENDER = "keep-corpus"
LARGEST_BYTES = 4 << 30
"""Of what is kept: each run has its own there. A dataset's ``cache_dir`` can be a bucket itself."""


def prepared(cfg: DataConfig, contract: Contract) -> Path:
    """Give the directory of the run's prepared corpus: this worker's own, or the run's from the
    bucket, or one prepared anew; from process 0 it goes to the bucket while the run begins.

    Raises what ``prepare`` does.
    """
    if not isinstance(contract.checkpoints, str):
        return prepare(cfg)
    kept = Kept(f"{contract.checkpoints}/{FOLDER}")
    directory = prepare(cfg, kept.fetch)
    if contract.process_id == 0:
        threading.Thread(target=kept.keep, args=[directory], name=SENDER, daemon=True).start()
    return directory


class Kept:
    """Prepared corpora by their names. What goes wrong never stops the run."""

    def __init__(self, place: str) -> None:
        """``place`` is a directory or gs://bucket/prefix of the run's own."""
        self._place = place
        self._refused = False
        self._over = threading.Event()
        atexit.register(self._over.set)

    def fetch(self, directory: Path) -> bool:
        """Have a prepared corpus as ``directory``, whole; tell whether it was there."""
        try:
            files, root = files_at(f"{self._place}/{directory.name}")
            try:
                told = files.cat_file(f"{root}/{META}")
            except FileNotFoundError:
                return False
            self._refused = True
            with tempfile.TemporaryDirectory(prefix=".kept-", dir=directory.parent) as partial:
                come = Path(partial) / "corpus"
                come.mkdir()
                for path in files.ls(root, detail=False):
                    if not path.endswith(f"/{META}"):
                        files.get_file(path, str(come / path.rpartition("/")[2]))
                (come / META).write_bytes(told)
                meta = read_meta(come)
                if fingerprint(come, read_tokenizer(come, meta)) != meta.fingerprint:
                    raise ValueError("it is not what its meta.json says")
                come.rename(directory)
            self._refused = False
        except Exception as err:  # each of gcsfs's, google-auth's and aiohttp's own kinds
            if not (directory / META).exists():  # else another process was first
                log.warning(
                    "%s: not fetched, so it is prepared again: %s", self._place, in_one_line(err)
                )
                return False
        log.info("the prepared corpus came from %s", self._place)
        return True

    def keep(self, directory: Path) -> None:
        """Put a prepared corpus there if it isn't yet, or in the place of one that was refused."""
        try:
            read_meta(directory)
            files, root = files_at(f"{self._place}/{directory.name}")
            found = sorted(directory.iterdir(), key=lambda path: path.name == META)
            if sum(path.stat().st_size for path in found) > LARGEST_BYTES:
                return
            if self._refused or not files.exists(f"{root}/{META}"):
                for path in found:
                    files.put_file(str(path), f"{root}/{path.name}")
        except Exception as err:
            if not self._over.is_set():
                log.warning(
                    "%s: not kept, so a new TPU prepares again: %s", self._place, in_one_line(err)
                )
