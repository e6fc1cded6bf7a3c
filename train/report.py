"""Outputs of process 0's metrics: metrics.jsonl, and if configured TensorBoard, W&B and a plot.

A separate process (mirror.py) sends the lines of metrics.jsonl to TensorBoard and W&B, so that
failures of the network or a service neither slow nor stop the run.
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
"""How long a run waits at its end until mirror.py has sent the last metrics."""

METRICS = "metrics.jsonl"


class Report:
    """Outputs of a run's metrics, for an attempt that starts after ``step``."""

    def __init__(self, cfg: Config, contract: Contract, step: int) -> None:
        self._cfg, self._run_dir = cfg, contract.run_dir
        self._log = MetricsLog(contract.run_dir / METRICS, step, cfg.log_every)
        self._mirror = None
        if cfg.report.tensorboard or cfg.report.wandb:
            self._mirror = _start_mirror(cfg, contract, step)

    def write(self, metrics: Metrics) -> None:
        """Append a finished step to metrics.jsonl."""
        self._log.write(metrics)

    def close(self, done: bool) -> None:
        """Wait for mirror.py; if the run is ``done``, plot the loss as configured."""
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
            mirror.stdin.close()  # makes mirror.py finish
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
    """Start mirror.py and send it the job; if that fails, log a warning and return None."""
    job = {
        "run": contract.run,
        "metrics": str(contract.run_dir / METRICS),
        "step": step,
        "tensorboard": _tensorboard_directory(cfg, contract),
        "wandb": cfg.report.wandb,
        "wandb_directory": str(contract.run_dir),
        # The same in every attempt, so that all attempts share one W&B run.
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
    """Return the directory of the run's event files, None if not configured.

    A relative path is in the run directory. Several runs may share an absolute path or a bucket, so
    each run has a subdirectory there.
    """
    path = cfg.report.tensorboard
    if path is None:
        return None
    if "://" in path or Path(path).expanduser().is_absolute():
        shared = path if "://" in path else str(Path(path).expanduser())
        return f"{shared.rstrip('/')}/{contract.run}"
    return str(contract.run_dir / path)
