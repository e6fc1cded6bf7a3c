"""The run contract between trainer and fleet: environment, exit codes, heartbeat.

Environment of each process (all optional, for runs started by hand)::

    TPUFLEET_RUN           the run's name               TPUFLEET_COORDINATOR    host:port
    TPUFLEET_RUN_DIR       its directory on the worker  TPUFLEET_NUM_PROCESSES  n
    TPUFLEET_CHECKPOINTS   directory or gs:// that      TPUFLEET_PROCESS_ID     0 to n - 1
                           all processes share
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
"""BSD's EX_SOFTWARE: no step finished for ``hang_after`` seconds; a crash to the fleet."""
INTERRUPTED = 75
"""BSD's EX_TEMPFAIL: interrupted and saved; the fleet may restart it."""

HEARTBEAT_SECONDS = 1.0


@dataclass(frozen=True)
class Contract:
    """What the fleet tells one process about its run.

    ``coordinator`` is empty for a single process started by hand. ``checkpoints`` is a str for
    gs:// and a Path otherwise.
    """

    run: str
    run_dir: Path
    checkpoints: Path | str
    coordinator: str = ""
    num_processes: int = 1
    process_id: int = 0


def from_environment(environ: Mapping[str, str], config_path: str, cfg: Config) -> Contract:
    """Read the contract; without a fleet, the run directory is ``runs/<config's stem>``.

    Raises ConfigError for invalid or contradictory variables.
    """
    run = environ.get("TPUFLEET_RUN") or Path(config_path).stem
    run_dir = Path(environ.get("TPUFLEET_RUN_DIR") or Path("runs") / run).absolute()
    # The environment overrides the config, because the fleet has checked that path.
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
        _location(checkpoints) if checkpoints else run_dir / "checkpoints",
        coordinator,
        num_processes,
        process_id,
    )


def check_writable(contract: Contract) -> None:
    """Create the run's directories and check them; raises ConfigError for one that fails.

    Call it before the processes join: one that exits later makes the others wait.
    """
    for location in (contract.run_dir, contract.checkpoints):
        check_path_writable(location)


def check_path_writable(location: Path | str, key: str = "") -> None:
    """Create a directory (or gs://bucket/prefix) and write to it; raises ConfigError on failure.

    The error begins with the config's ``key``, if any, and the location.
    """
    try:
        if isinstance(location, Path):
            location.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=location):
                pass
        else:
            _check_bucket_writable(location)
    except OSError as err:
        why = err.strerror or " ".join(str(err).split())
        raise ConfigError(f"{key and key + ': '}{location}: cannot be written: {why}") from err


def _location(checkpoints: str) -> Path | str:
    if "://" in checkpoints:
        return checkpoints.rstrip("/")
    return Path(checkpoints).expanduser().absolute()


def open_filesystem(location: Path | str) -> tuple[Any, str]:
    """Return fsspec's file system for a directory or gs://bucket/prefix, and the path in it."""
    # By default gcsfs asks another API for the bucket's type once per file, which is slow where
    # that API or credentials are missing. The standard access works for all buckets.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    # Final failures raise; retries before that need no log lines.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    import fsspec  # slow to import

    return fsspec.core.url_to_fs(str(location), use_listings_cache=False)


def _check_bucket_writable(prefix: str) -> None:
    """Write an object and remove it. Raises OSError for any failure."""
    try:
        bucket, root = open_filesystem(prefix)
        probe = f"{root}/.probe-{socket.gethostname()}-{os.getpid()}"
        bucket.pipe_file(probe, b"")
        bucket.rm_file(probe)
    except Exception as err:  # each of gcsfs's, google-auth's and aiohttp's own kinds
        raise OSError(0, one_line(err)) from err


def one_line(err: Exception) -> str:
    """Format an error on one line, its type first and the message shortened."""
    return f"{type(err).__name__}: {' '.join(str(err).split())[:300]}"


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal():
        raise ConfigError(f"{name}: must be a whole number, not {text!r}")
    return int(text)


class Heartbeat:
    """``heartbeat.json``: this process's progress, replaced at most once a second.

    ``state`` is one of starting, running, done, interrupted, nan, hung, failed. ``time`` is the
    Unix time of the last progress in seconds.
    """

    def __init__(self, run_dir: Path, steps: int) -> None:
        self.path = run_dir / "heartbeat.json"
        self.steps = steps
        self.step = 0
        self.loss: float | None = None
        self.tokens_per_second: float | None = None
        self._written = -HEARTBEAT_SECONDS

    def progress(self, step: int, loss: float, tokens_per_second: float | None) -> None:
        """Record a finished step; write it if the last write is at least a second old."""
        self.step, self.loss, self.tokens_per_second = (
            step,
            finite_or_none(loss),
            tokens_per_second,
        )
        if time.monotonic() - self._written >= HEARTBEAT_SECONDS:
            self.write("running")

    def write(self, state: str) -> None:
        """Write now, atomically."""
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
    """Return a number for JSON: None for infinity and NaN."""
    return value if value is not None and math.isfinite(value) else None


def write_atomically(path: Path, text: str) -> None:
    """Replace a file, so that no reader sees a partial one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
