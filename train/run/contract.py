"""Run contract between fleet and trainer: environment variables, exit codes, heartbeat.

Variables of each process (all optional, so that a run can be started by hand)::

    TPUFLEET_RUN           the run's name               TPUFLEET_COORDINATOR    host:port
    TPUFLEET_RUN_DIR       its directory on the worker  TPUFLEET_NUM_PROCESSES  n
    TPUFLEET_CHECKPOINTS   directory or gs:// that      TPUFLEET_PROCESS_ID     0 to n - 1
                           all processes share
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from train.core.config import Config, ConfigError
from train.storage import check_path_writable, parse_location, write_atomically

log = logging.getLogger(__name__)

DONE = 0
CRASHED = 1
BAD_CONFIG = 2
NOT_A_NUMBER = 3
HUNG = 70
"""BSD's EX_SOFTWARE: no step finished in ``hang_after`` seconds. The fleet treats it as a crash."""
INTERRUPTED = 75
"""BSD's EX_TEMPFAIL: interrupted by SIGTERM, state saved. The fleet may restart the run."""

HEARTBEAT_SECONDS = 1.0
STARTING_SECONDS = 10.0
"""Interval of heartbeats while data is prepared and until all processes have joined."""


@dataclass(frozen=True)
class Contract:
    """Settings of a run that the fleet passes to each of its processes.

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
    """Read the contract from environment variables.

    By default, the run's name is ``config_path``'s file name without suffix, and its directory
    ``runs/<name>``. Raises ConfigError for invalid or contradictory variables.
    """
    run = environ.get("TPUFLEET_RUN") or Path(config_path).stem
    run_dir = Path(environ.get("TPUFLEET_RUN_DIR") or Path("runs") / run).absolute()
    # The environment overrides the config, because the fleet has checked the path it passes.
    directory = environ.get("TPUFLEET_CHECKPOINTS") or cfg.checkpoint.directory
    key = "TPUFLEET_CHECKPOINTS or checkpoint.directory"
    checkpoints = parse_location(directory or str(run_dir / "checkpoints"), key)
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
    if coordinator and not coordinator.rpartition(":")[2].isdecimal():
        raise ConfigError(f"TPUFLEET_COORDINATOR: must be host:port, not {coordinator!r}")
    return Contract(
        run,
        run_dir,
        checkpoints if isinstance(checkpoints, str) else checkpoints.absolute(),
        coordinator,
        num_processes,
        process_id,
    )


def check_writable(contract: Contract) -> None:
    """Create the run's directories; raises the errors of ``storage.check_path_writable``.

    Call this before ``mesh.join``: if a process exits later, the others wait for it.
    """
    for location in (contract.run_dir, contract.checkpoints):
        check_path_writable(location)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal():
        raise ConfigError(f"{name}: must be a whole number, not {text!r}")
    return int(text)


class Heartbeat:
    """``heartbeat.json``: progress of this process, replaced at most once a second in training.

    ``state`` is one of starting, running, done, interrupted, nan, hung, failed. ``time`` is the
    Unix time in seconds at which the file was written. The keys of ``memory`` (metrics.memory) are
    measured during training only, because devices that hang may not answer.

    ``step`` is None until this attempt has finished a step. ``start_step`` is the step from which
    it starts: that of the restored checkpoint, else 0; None until the checkpoint is restored.
    """

    def __init__(self, run_dir: Path, steps: int) -> None:
        self.path = run_dir / "heartbeat.json"
        self.steps = steps
        self.step: int | None = None
        self.start_step: int | None = None
        self.loss: float | None = None
        self.tokens_per_second: float | None = None
        self.mfu: float | None = None
        self.memory: dict[str, int] = {}
        self._written = -HEARTBEAT_SECONDS
        self._report = log.warning

    def progress(
        self,
        step: int,
        loss: float,
        tokens_per_second: float | None,
        mfu: float | None = None,
        memory: Callable[[], dict[str, int]] = dict,
    ) -> None:
        """Record a finished step; write ``heartbeat.json`` if it is at least a second old.

        ``memory`` is called when the file is written, and returns bytes of memory by name, as
        metrics.memory does.
        """
        self.step, self.loss = step, finite_or_none(loss)
        self.tokens_per_second, self.mfu = tokens_per_second, mfu
        if time.monotonic() - self._written >= HEARTBEAT_SECONDS:
            self.memory = memory()
            self.write("running")

    def write(self, state: str) -> None:
        """Replace ``heartbeat.json`` now, atomically, with ``state`` and the last recorded step.

        A run does not need this file, so a failure is logged once and otherwise ignored.
        """
        beat = {
            "step": self.step,
            "start_step": self.start_step,
            "steps": self.steps,
            "time": time.time(),
            "loss": self.loss,
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu,
            **self.memory,
            "state": state,
        }
        self._written = time.monotonic()
        try:
            write_atomically(self.path, json.dumps(beat) + "\n")
        except OSError as err:
            self._report("%s: cannot be written: %s", self.path, err.strerror)
            self._report = log.debug


def finite_or_none(value: float | None) -> float | None:
    """Return the value, or None for infinity and NaN, which JSON cannot represent."""
    return value if value is not None and math.isfinite(value) else None
