"""Real trainer processes for tests: started as the fleet starts them, never left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from train.config import Config
from train.contract import Contract, Heartbeat, check_writable
from train.corpus import prepare
from train.data import Corpus

PROJECT = Path(__file__).parents[1]
LIMIT_SECONDS = 300
PROCESSES = 2

QUICKLY_COMPILED = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
"""Here a compilation runs a few steps."""

AS_ANYBODY_S = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
"""For processes that show what holds to the bit."""


@dataclass(frozen=True)
class Compiled:
    """A directory where processes find what those before them had compiled."""

    directory: Path

    @property
    def jax(self) -> Path:
        """What XLA has compiled."""
        return self.directory / "jax"

    @property
    def kept(self) -> dict[str, str]:
        """The environment in which Python and XLA keep all that they compile."""
        return {
            "PYTHONPYCACHEPREFIX": str(self.directory / "python"),
            "PYTHONDONTWRITEBYTECODE": "",  # whatever this environment says
            "JAX_COMPILATION_CACHE_DIR": str(self.jax),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }


class Attempt:
    """The processes of an attempt of a run: ``directory/w<i>`` each, ``checkpoints`` for all.

    ``own_checkpoints`` is a process that gets a directory of checkpoints of its own;
    ``environment`` is added to that of each.
    """

    def __init__(
        self,
        directory: Path,
        config: Path,
        overrides: dict[int, list[str]],
        compiled: Compiled,
        own_checkpoints: int | None = None,
        processes: int = PROCESSES,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._environment = {"TPUFLEET_NUM_PROCESSES": str(processes)} | (environment or {})
        self.compiled = compiled
        self.started = time.time()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
        self.processes = [
            self._start(i, coordinator, config, overrides.get(i, []), i == own_checkpoints)
            for i in range(processes)
        ]

    def _start(
        self, index: int, coordinator: str, config: Path, overrides: list[str], apart: bool
    ) -> subprocess.Popen[bytes]:
        run_dir = self.directory / f"w{index}"
        run_dir.mkdir(parents=True, exist_ok=True)
        environment = (
            clean_environment()
            | self.compiled.kept
            | {
                "JAX_ENABLE_PREEMPTION_SERVICE": "false",  # as the fleet has it for all trainers
                "TPUFLEET_RUN": "test",
                "TPUFLEET_RUN_DIR": str(run_dir),
                "TPUFLEET_CHECKPOINTS": str((run_dir if apart else self.directory) / "checkpoints"),
                "TPUFLEET_COORDINATOR": coordinator,
                "TPUFLEET_PROCESS_ID": str(index),
            }
            | self._environment
        )
        command = [sys.executable, "-m", "train", "run", str(config), *overrides]
        with (run_dir / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=log, stderr=log)

    def signal(self, index: int, number: signal.Signals) -> None:
        """Send a signal to one process."""
        self.processes[index].send_signal(number)

    def codes(self) -> list[int]:
        """Wait for all and return their exit codes."""
        return [process.wait(LIMIT_SECONDS) for process in self.processes]

    def wait_for_step(self, step: int) -> None:
        """Wait until a step is logged, while all processes run."""
        self.wait_for(lambda: len(loss_log(self.directory / "w0")) >= step)

    def wait_for_progress(self) -> None:
        """Wait until this attempt has logged a step of its own."""
        run_dir = self.directory / "w0"
        self.wait_for(lambda: any(line["time"] > self.started for line in read_metrics(run_dir)))

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait until something is so, while all processes run."""
        end = time.monotonic() + LIMIT_SECONDS
        while not ready():
            assert time.monotonic() < end, self.logs()
            assert all(process.poll() is None for process in self.processes), self.logs()
            time.sleep(0.02)

    def kill(self) -> None:
        """Leave none behind."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def logs(self) -> str:
        """Everything that the processes have said, for a failing test's message."""
        return "\n".join(
            (self.directory / f"w{i}" / "log").read_text() for i in range(len(self.processes))
        )


def train_here(cfg: Config, directory: Path) -> int:
    """Run to the end in this process, as the command line does, and return the exit code."""
    from train.loop import Run

    place = Contract("alone", directory, directory / "checkpoints")
    check_writable(place)
    corpus = Corpus(prepare(cfg.data), cfg)
    return Run(cfg, place, corpus, Heartbeat(directory, cfg.steps)).go()


def clean_environment() -> dict[str, str]:
    """This environment without what a run around the tests may have left in it."""
    foreign = ("TPUFLEET_", "XLA_", "JAX_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    return kept | {"PYTHONPATH": str(PROJECT), "JAX_PLATFORMS": "cpu"}


def loss_log(run_dir: Path) -> list[tuple[int, float]]:
    """The steps and losses of a run's metrics, to the bit; empty before there are any."""
    return [(record["step"], record["loss"]) for record in read_metrics(run_dir)]


def read_metrics(run_dir: Path) -> list[dict[str, float]]:
    """The lines of a run's metrics that are whole."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
