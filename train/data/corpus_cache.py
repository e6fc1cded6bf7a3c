"""Copies of a run's prepared corpora beside its checkpoints, for all workers and later TPUs.

Process 0 prepares a corpus and uploads it; the other processes wait for it and download it. A
preempted TPU loses its disks, so without the copy the next TPU would have to download the text
again, from a package registry or the Hugging Face Hub, and tokenize it.
"""

import logging
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from train.data import hub, tokens
from train.data.config import DataConfig
from train.data.corpus import fingerprint, hub_tokenizer, prepare_all, read_meta, read_tokenizer
from train.run.contract import Contract
from train.storage import (
    converted_errors,
    logged_errors,
    new_directory,
    one_line,
    open_filesystem,
    repeated,
    write_atomically,
)

log = logging.getLogger(__name__)

FOLDER = "corpus"
META = "meta.json"
"""File that is uploaded last, so that a partial upload does not count as a corpus."""
THREAD_NAME = "keep-corpus"

PULSE = "preparing"
"""Object that process 0 changes every PULSE_SECONDS while it prepares and uploads corpora."""
PULSE_SECONDS = 10.0
SILENT_SECONDS = 120.0
"""Seconds without a change of PULSE, after which a waiting process prepares the corpus itself."""
POLL_SECONDS = 1.0


def prepared(cfg: DataConfig, contract: Contract) -> list[Path]:
    """Download or prepare the corpora, unless this machine has them; return their directories.

    Of several processes, process 0 prepares the corpora; the others wait for its upload. Raises the
    errors of ``prepare``.
    """
    cache = CorpusCache(f"{contract.checkpoints}/{FOLDER}")
    cfg = cache.with_own_tokenizer(cfg, is_writer=not contract.process_id)
    if contract.process_id:
        return prepare_all(cfg, cache.wait_and_fetch)
    if contract.num_processes == 1:
        if not isinstance(contract.checkpoints, str):
            return prepare_all(cfg)
        directories = prepare_all(cfg, cache.fetch)
        upload = threading.Thread(
            target=lambda: [*map(cache.upload, directories)], name=THREAD_NAME, daemon=True
        )
        upload.start()
        return directories
    with repeated(cache.write_pulse, PULSE_SECONDS):
        directories = prepare_all(cfg, cache.fetch)
        # Upload before initializing JAX: the initialization waits for the other processes, and
        # they wait for the upload.
        for directory in directories:
            cache.upload(directory)
    return directories


def fetched(cfg: DataConfig, contract: Contract) -> list[Path]:
    """Return the directories of a run's corpora.

    A corpus that is not on this machine is downloaded from the run's copy, or prepared if there is
    no copy. Nothing is uploaded.
    """
    cache = CorpusCache(f"{contract.checkpoints}/{FOLDER}")
    return prepare_all(cache.with_own_tokenizer(cfg), cache.fetch)


class CorpusCache:
    """Prepared corpora beside a run's checkpoints; a failure to copy a corpus is only logged."""

    def __init__(self, location: str) -> None:
        """Keep the corpora in ``location``, a directory or gs://bucket/prefix of the run."""
        self._location = location
        self._damaged: set[str] = set()

    def with_own_tokenizer(self, cfg: DataConfig, is_writer: bool = False) -> DataConfig:
        """Return the config with the path of a tokenizer instead of its name at Hugging Face.

        If there is a copy beside the run's checkpoints, its path is used. Otherwise, the tokenizer
        is downloaded from the hub and, with ``is_writer``, stored beside the checkpoints. Therefore
        all attempts use the same tokenizer, and only the first needs the hub.
        """
        if not hub.is_repository(cfg.tokenizer):
            return cfg
        folder = f"{self._location}/{re.sub('[/@]', '--', cfg.tokenizer)}"
        filesystem, root = open_filesystem(folder)
        with converted_errors(f"{folder}: cannot be read"):
            if filesystem.exists(f"{root}/{tokens.FILE}"):
                return replace(cfg, tokenizer=f"{folder}/{tokens.FILE}")
        tokenizer_file = hub_tokenizer(cfg)
        with logged_errors(
            f"{folder}: the tokenizer cannot be written, so the next attempt needs the hub again"
        ):
            for name in (*tokens.BESIDE, tokens.FILE) if is_writer else ():
                if tokenizer_file.with_name(name).exists():
                    content = tokenizer_file.with_name(name).read_bytes()
                    write_atomically(f"{folder}/{name}", content)
        return replace(cfg, tokenizer=str(tokenizer_file))

    def fetch(self, directory: Path) -> bool:
        """If there is a copy, download it to ``directory``; return whether the directory exists."""
        try:
            filesystem, root = open_filesystem(f"{self._location}/{directory.name}")
            try:
                meta_json = filesystem.cat_file(f"{root}/{META}")
            except FileNotFoundError:
                return False
            self._damaged.add(directory.name)
            with new_directory(directory) as new:
                for path in filesystem.ls(root, detail=False):
                    if not path.endswith(f"/{META}"):
                        filesystem.get_file(path, str(new / path.rpartition("/")[2]))
                (new / META).write_bytes(meta_json)
                meta = read_meta(new)
                if fingerprint(new, read_tokenizer(new, meta)) != meta.fingerprint:
                    raise ValueError("its fingerprint differs from meta.json")
            self._damaged.remove(directory.name)
        except Exception as err:  # gcsfs, google-auth and aiohttp raise their own error types
            # If the corpus exists, another process finished first.
            if not (directory / META).exists():
                log.warning(
                    "%s: the prepared corpus cannot be downloaded, so it is prepared again: %s",
                    self._location,
                    one_line(err),
                )
                return False
        log.info("downloaded the prepared corpus from %s", self._location)
        return True

    def wait_and_fetch(self, directory: Path) -> bool:
        """Wait until process 0 has uploaded the corpus, download it, and return True.

        Returns False if the object PULSE does not change for SILENT_SECONDS, or if the copy cannot
        be downloaded.
        """
        pulse, changed = b"", time.monotonic()
        while time.monotonic() - changed < SILENT_SECONDS:
            if (directory / META).exists():
                return True
            try:
                filesystem, root = open_filesystem(self._location)
                if filesystem.exists(f"{root}/{directory.name}/{META}"):
                    return self.fetch(directory)
                latest = filesystem.cat_file(f"{root}/{PULSE}")
            except FileNotFoundError:
                latest = b""
            except Exception as err:  # storage clients raise their own error types
                log.warning("%s: cannot be read, retrying: %s", self._location, one_line(err))
                latest = pulse
            if latest != pulse:
                pulse, changed = latest, time.monotonic()
            time.sleep(POLL_SECONDS)
        log.warning(
            "process 0 has not reported progress for %g s, so this process prepares %s",
            SILENT_SECONDS,
            directory.name,
        )
        return False

    def write_pulse(self) -> None:
        """Change the object PULSE, so that the other processes keep waiting."""
        with logged_errors(f"{self._location}/{PULSE}: cannot be written, retrying"):
            write_atomically(f"{self._location}/{PULSE}", str(time.time()))

    def upload(self, directory: Path) -> None:
        """Upload a prepared corpus to the cache, unless the cache has an intact copy of it."""
        with logged_errors(
            f"{self._location}: the corpus cannot be uploaded, so a new TPU prepares it again"
        ):
            read_meta(directory)
            filesystem, root = open_filesystem(f"{self._location}/{directory.name}")
            paths = sorted(directory.iterdir(), key=lambda path: path.name == META)
            if directory.name in self._damaged or not filesystem.exists(f"{root}/{META}"):
                for path in paths:
                    self._put(filesystem, path, f"{root}/{path.name}")

    def _put(self, filesystem: Any, path: Path, target: str) -> None:
        if "://" not in self._location:  # a directory: try a hard link first
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(target).unlink(missing_ok=True)
            with suppress(OSError):  # if linking fails (another file system), copy the file
                os.link(path, target)
                return
        filesystem.put_file(str(path), target)
