"""Real trainer processes for tests, started as a launch on a fleet starts them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from train.core.config import Config
from train.core.data import Corpus
from train.data.corpus import prepare_all
from train.run.contract import Contract, Heartbeat, check_writable

PROJECT = Path(__file__).parents[1]
LIMIT_SECONDS = 300
PROCESSES = 2

QUICKLY_COMPILED = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
"""Environment variables for tests of a few steps: compilation is quick, steps are slow."""

FULLY_OPTIMIZED = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
    "XLA_FLAGS": "--xla_backend_optimization_level=2",
}
"""Environment variables for tests of bit-exact results."""


def cache_variables(compile_cache: Path) -> dict[str, str]:
    """Return the environment variables that make a directory the compile cache of JAX."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(compile_cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


class Attempt:
    """The processes of an attempt, started on construction.

    Process i has the run directory ``directory/w<i>``; all share ``directory/checkpoints``.

    Args:
        directory: the directory of the attempt's files.
        config: the config file.
        overrides: settings (``key=value``) that override the config; maps the index of a process to
            its list of settings.
        compile_cache: JAX's compile cache, which the processes share.
        own_checkpoints: the index of a process that does not share the checkpoints, but has them in
            its run directory; None if all share them.
        processes: the number of processes.
        environment: environment variables for all processes.
        program: the arguments of ``python -m`` before the config: a module, then its arguments.
    """

    def __init__(
        self,
        directory: Path,
        config: Path,
        overrides: dict[int, list[str]],
        compile_cache: Path,
        own_checkpoints: int | None = None,
        processes: int = PROCESSES,
        environment: dict[str, str] | None = None,
        program: tuple[str, ...] = ("train", "run"),
    ) -> None:
        self.directory = directory
        self._program = program
        self._environment = {"TPUFLEET_NUM_PROCESSES": str(processes)} | (environment or {})
        self._compile_cache = compile_cache
        self.started = time.time()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
        self.processes = [
            self._start(i, coordinator, config, overrides.get(i, []), i == own_checkpoints)
            for i in range(processes)
        ]

    def _start(
        self,
        index: int,
        coordinator: str,
        config: Path,
        overrides: list[str],
        has_own_checkpoints: bool,
    ) -> subprocess.Popen[bytes]:
        run_dir = self.directory / f"w{index}"
        run_dir.mkdir(parents=True, exist_ok=True)
        environment = (
            clean_environment()
            | cache_variables(self._compile_cache)
            | {
                "JAX_ENABLE_PREEMPTION_SERVICE": "false",  # a launch on a fleet sets it, too
                "TPUFLEET_RUN": "test",
                "TPUFLEET_RUN_DIR": str(run_dir),
                "TPUFLEET_CHECKPOINTS": str(
                    (run_dir if has_own_checkpoints else self.directory) / "checkpoints"
                ),
                "TPUFLEET_COORDINATOR": coordinator,
                "TPUFLEET_PROCESS_ID": str(index),
            }
            | self._environment
        )
        command = [sys.executable, "-m", *self._program, str(config), *overrides]
        with (run_dir / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=log, stderr=log)

    def signal(self, index: int, number: signal.Signals) -> None:
        """Send a signal to one process."""
        self.processes[index].send_signal(number)

    def codes(self) -> list[int]:
        """Wait for all processes and return their exit codes."""
        return [process.wait(LIMIT_SECONDS) for process in self.processes]

    def wait_for_progress(self) -> None:
        """Wait until this attempt has logged a step."""
        run_dir = self.directory / "w0"
        self.wait_for(lambda: any(line["time"] > self.started for line in read_metrics(run_dir)))

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait until a condition is true; fail if a process ends or after LIMIT_SECONDS."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not ready():
            assert time.monotonic() < deadline, self.logs()
            assert all(process.poll() is None for process in self.processes), self.logs()
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill all processes."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def logs(self) -> str:
        """Return the logs of all processes, for a failing test's message."""
        return "\n".join(
            (self.directory / f"w{i}" / "log").read_text() for i in range(len(self.processes))
        )


def train_here(cfg: Config, directory: Path) -> int:
    """Train to the end in this process, as ``python -m train run`` does, and return the exit code.

    ``directory`` gets the run's files and its checkpoints.
    """
    from train.run.loop import Run

    contract = Contract("alone", directory, directory / "checkpoints")
    check_writable(contract)
    corpus = Corpus(prepare_all(cfg.data), cfg)
    # cfg.hang_after must be 0 (no watchdog): after an exception in train(), the watchdog would wait
    # in vain for the next step, and then end this process.
    return Run(cfg, contract, corpus, Heartbeat(directory, cfg.steps)).train()


def restored_here(cfg: Config, contract: Contract) -> Any:
    """Return the parameters of a run's newest checkpoint, on this process's devices."""
    import jax

    from train.run import mesh
    from train.run.restore import restored_params

    corpus = Corpus(prepare_all(cfg.data), cfg)
    return restored_params(cfg, contract, corpus, mesh.make_mesh(jax.devices()))


def clean_environment() -> dict[str, str]:
    """Return this process's environment without variables of runs, XLA and JAX."""
    foreign = ("TPUFLEET_", "XLA_", "JAX_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    return inherited | {"PYTHONPATH": str(PROJECT), "JAX_PLATFORMS": "cpu"}


def loss_log(run_dir: Path) -> list[tuple[int, float]]:
    """Return the steps and exact losses of a run's metrics."""
    return [(record["step"], record["loss"]) for record in read_metrics(run_dir)]


def read_metrics(run_dir: Path) -> list[dict[str, float]]:
    """Return the complete lines of a run's metrics."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
