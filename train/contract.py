"""What the trainer and whoever starts it agree on: environment, exit codes, heartbeat.

The environment of each process (any of it may be missing, for a run by hand)::

    TPUFLEET_RUN           the run's name              TPUFLEET_COORDINATOR    host:port
    TPUFLEET_RUN_DIR       its directory, one a worker  TPUFLEET_NUM_PROCESSES  how many
    TPUFLEET_CHECKPOINTS   one place for all: a         TPUFLEET_PROCESS_ID     0 to n - 1
                           directory or gs://
"""

import json
import logging
import math
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.config import Config, ConfigError

DONE = 0
CRASHED = 1
BAD_CONFIG = 2
NOT_A_NUMBER = 3
HUNG = 70
"""BSD's EX_SOFTWARE: no step finished for ``hang_after`` seconds; to the fleet, a crash."""
INTERRUPTED = 75
"""BSD's EX_TEMPFAIL: interrupted and saved, to be started again."""

HEARTBEAT_SECONDS = 1.0


@dataclass(frozen=True)
class Contract:
    """One process's place in a run. ``coordinator`` is empty for a run of one process by hand.

    ``checkpoints`` is a text where it is on gs://, and a Path otherwise.
    """

    run: str
    run_dir: Path
    checkpoints: Path | str
    coordinator: str = ""
    num_processes: int = 1
    process_id: int = 0


def from_environment(environ: Mapping[str, str], config_path: str, cfg: Config) -> Contract:
    """Read this process's place; without a fleet, the run is ``runs/<config's stem>`` here.

    Raises ConfigError where the three that make a group of processes don't fit together.
    """
    run = environ.get("TPUFLEET_RUN") or Path(config_path).stem
    run_dir = Path(environ.get("TPUFLEET_RUN_DIR") or Path("runs") / run).absolute()
    # The fleet's word comes before the config's: it has tried that this path can be written to.
    checkpoints = environ.get("TPUFLEET_CHECKPOINTS") or cfg.checkpoint.directory
    coordinator = environ.get("TPUFLEET_COORDINATOR", "")
    num_processes = _number(environ, "TPUFLEET_NUM_PROCESSES", 1)
    process_id = _number(environ, "TPUFLEET_PROCESS_ID", 0)
    if not 0 <= process_id < num_processes:
        raise ConfigError(
            f"TPUFLEET_PROCESS_ID: must be at least 0 and below TPUFLEET_NUM_PROCESSES "
            f"({num_processes}), not {process_id}"
        )
    if num_processes > 1 and not coordinator:
        raise ConfigError(
            f"TPUFLEET_COORDINATOR: must be host:port for {num_processes} processes, not empty"
        )
    if checkpoints and "://" in checkpoints and not checkpoints.startswith("gs://"):
        raise ConfigError(
            "TPUFLEET_CHECKPOINTS or checkpoint.directory: must be a directory or "
            f"gs://bucket/prefix, not {checkpoints}"
        )
    if coordinator and not coordinator.rpartition(":")[2].isdecimal():
        raise ConfigError(f"TPUFLEET_COORDINATOR: must be host:port, not {coordinator!r}")
    return Contract(
        run,
        run_dir,
        _place(checkpoints) if checkpoints else run_dir / "checkpoints",
        coordinator,
        num_processes,
        process_id,
    )


def check_writable(contract: Contract) -> None:
    """Make the run's directories and try each; raises ConfigError that names the one that fails.

    To be done before the processes join: one that leaves later makes all the others wait.
    """
    for place in (contract.run_dir, contract.checkpoints):
        try_to_write(place)


def try_to_write(place: Path | str, key: str = "") -> None:
    """Make a directory (or gs://bucket/prefix) and write there; raises ConfigError if that fails.

    The line begins with the config's ``key``, if any, and names the place.
    """
    try:
        if isinstance(place, Path):
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                pass
        else:
            _try_bucket(place)
    except OSError as err:
        why = err.strerror or " ".join(str(err).split())
        raise ConfigError(f"{key and key + ': '}{place}: cannot be written: {why}") from err


def _place(checkpoints: str) -> Path | str:
    if "://" in checkpoints:
        return checkpoints.rstrip("/")
    return Path(checkpoints).expanduser().absolute()


def files_at(place: Path | str) -> tuple[Any, str]:
    """Open a directory or gs://bucket/prefix: fsspec's file system, and the path within it."""
    # By default gcsfs first asks another API for the bucket's kind, once a file, and for long
    # where that API or credentials are missing; the plain kind of access serves all buckets.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    # What goes wrong for good is raised; what it tried before that is no news.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    import fsspec  # takes a while

    return fsspec.core.url_to_fs(str(place), use_listings_cache=False)


def _try_bucket(prefix: str) -> None:
    """Write an object and remove it; whatever goes wrong is an OSError."""
    try:
        bucket, root = files_at(prefix)
        probe = f"{root}/.probe-{socket.gethostname()}-{os.getpid()}"
        bucket.pipe_file(probe, b"")
        bucket.rm_file(probe)
    except Exception as err:  # each of gcsfs's, google-auth's and aiohttp's own kinds
        raise OSError(0, in_one_line(err)) from err


def in_one_line(err: Exception) -> str:
    """Say what went wrong, its kind first; libraries' own words can be a page."""
    return f"{type(err).__name__}: {' '.join(str(err).split())[:300]}"


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal():
        raise ConfigError(f"{name}: must be a whole number, not {text!r}")
    return int(text)


class Heartbeat:
    """``heartbeat.json``: how far this process is, replaced at most once a second.

    ``state`` is one of starting, running, done, interrupted, nan, hung, failed. ``time`` is the
    unix time of the last progress, in seconds: while a step hangs, it grows old.
    """

    def __init__(self, run_dir: Path, steps: int) -> None:
        self.path = run_dir / "heartbeat.json"
        self.steps = steps
        self.step = 0
        self.loss: float | None = None
        self.tokens_per_second: float | None = None
        self._written = -HEARTBEAT_SECONDS

    def progress(self, step: int, loss: float, tokens_per_second: float | None) -> None:
        """Note a finished step; written only if the last writing is a second old."""
        self.step, self.loss, self.tokens_per_second = (
            step,
            finite_or_none(loss),
            tokens_per_second,
        )
        if time.monotonic() - self._written >= HEARTBEAT_SECONDS:
            self.write("running")

    def write(self, state: str) -> None:
        """Write now, whole or not at all."""
        beat = {
            "step": self.step,
            "steps": self.steps,
            "time": time.time(),
            "loss": self.loss,
            "tokens_per_second": self.tokens_per_second,
            "state": state,
        }
        write_atomically(self.path, json.dumps(beat) + "\n")
        self._written = time.monotonic()


def finite_or_none(value: float | None) -> float | None:
    """Give a number as JSON can hold it: what is infinite or not a number becomes None."""
    return value if value is not None and math.isfinite(value) else None


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content so that no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
