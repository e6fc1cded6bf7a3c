"""Metrics of process 0: metrics.jsonl always; TensorBoard, W&B and a plot if configured.

A separate process (mirror.py) follows the file and feeds TensorBoard and W&B, so that no failure
of it, the network or a service slows or stops the run.
"""

import json
import logging
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from train import plot
from train.config import Config
from train.contract import Contract
from train.metrics import Metrics, MetricsLog

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_SECONDS = 15
"""How long the end of a run waits for the mirror to send the last metrics."""

METRICS = "metrics.jsonl"


class Report:
    """The metrics of a run after step ``step``."""

    def __init__(self, cfg: Config, contract: Contract, step: int) -> None:
        self._cfg, self._run_dir = cfg, contract.run_dir
        self._log = MetricsLog(contract.run_dir / METRICS, step, cfg.log_every)
        self._mirror = None
        if cfg.report.tensorboard or cfg.report.wandb:
            self._mirror = _start_mirror(cfg, contract, step)

    def write(self, metrics: Metrics) -> None:
        """Append a finished step."""
        self._log.write(metrics)

    def close(self, done: bool) -> None:
        """Let the mirror finish, and plot the loss of a finished run."""
        if self._mirror:
            self._close_mirror(self._mirror)
        if done and self._cfg.report.plot != "none":
            plot_file = self._run_dir / f"loss.{self._cfg.report.plot}"
            try:
                plot.draw([self._run_dir], plot_file)
            except Exception as err:  # a plot must not fail a finished run
                log.warning("%s: could not be plotted: %s", plot_file, err)

    def _close_mirror(self, mirror: subprocess.Popen[str]) -> None:
        try:
            mirror.stdin.close()  # the signal to finish
            mirror.wait(CLOSE_TIMEOUT_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            mirror.kill()
            mirror.wait()
            log.warning(
                "TensorBoard or W&B miss the last metrics (not sent within %d s); all are in %s",
                CLOSE_TIMEOUT_SECONDS,
                self._run_dir / METRICS,
            )


def _start_mirror(cfg: Config, contract: Contract, step: int) -> subprocess.Popen[str] | None:
    """Start the process and send it its job; None, with a warning, if that fails."""
    job = {
        "run": contract.run,
        "metrics": str(contract.run_dir / METRICS),
        "step": step,
        "tensorboard": _tensorboard_directory(cfg, contract),
        "wandb": cfg.report.wandb,
        "wandb_directory": str(contract.run_dir),
        # The same in every attempt, so that a run keeps its id.
        "identity": f"{contract.run} {contract.checkpoints}",
        "config": asdict(cfg),
    }
    try:
        mirror = subprocess.Popen(
            [sys.executable, "-m", "train.mirror"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            text=True,
        )
        mirror.stdin.write(json.dumps(job) + "\n")
        mirror.stdin.flush()
    except OSError as err:
        log.warning("no TensorBoard or W&B: %s", err)
        return None
    return mirror


def _tensorboard_directory(cfg: Config, contract: Contract) -> str | None:
    """Return a path in the run directory, or the run's subdirectory of a shared directory."""
    path = cfg.report.tensorboard
    if path is None:
        return None
    if "://" in path or Path(path).expanduser().is_absolute():
        shared = path if "://" in path else str(Path(path).expanduser())
        return f"{shared.rstrip('/')}/{contract.run}"
    return str(contract.run_dir / path)
