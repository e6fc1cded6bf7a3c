"""Where a run's figures go: metrics.jsonl always, the rest by config, from process 0 alone.

TensorBoard and W&B are fed by a process of its own (mirror.py), which follows the file. Nothing
that happens to it, to a network or to a service can slow a step down or stop the run.
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

PATIENCE_SECONDS = 15
"""How long the end of a run waits for the mirror to send the last figures."""

METRICS = "metrics.jsonl"


class Report:
    """A run's figures, from step ``step`` on."""

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
        """Let the mirror send what it has, and draw the picture of a run that is done."""
        if self._mirror:
            self._close_mirror(self._mirror)
        if done and self._cfg.report.plot != "none":
            picture = self._run_dir / f"loss.{self._cfg.report.plot}"
            try:
                plot.draw([self._run_dir], picture)
            except Exception as err:  # a picture is not worth a run's exit code
                log.warning("%s: could not be drawn: %s", picture, err)

    def _close_mirror(self, mirror: subprocess.Popen[str]) -> None:
        try:
            mirror.stdin.close()  # its sign to finish
            mirror.wait(PATIENCE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            mirror.kill()
            mirror.wait()
            log.warning(
                "TensorBoard or W&B lack the last figures: not sent within %d s; all are in %s",
                PATIENCE_SECONDS,
                self._run_dir / METRICS,
            )


def _start_mirror(cfg: Config, contract: Contract, step: int) -> subprocess.Popen[str] | None:
    """Start the process, and tell it what to do; None, and a line in the log, if that fails."""
    job = {
        "run": contract.run,
        "metrics": str(contract.run_dir / METRICS),
        "step": step,
        "tensorboard": _tensorboard_place(cfg, contract),
        "wandb": cfg.report.wandb,
        "wandb_directory": str(contract.run_dir),
        # The same in every attempt, wherever it runs: a run goes on under one id.
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


def _tensorboard_place(cfg: Config, contract: Contract) -> str | None:
    """A directory in the run's own, or below one that several runs share by the run's name."""
    place = cfg.report.tensorboard
    if place is None:
        return None
    if "://" in place or Path(place).expanduser().is_absolute():
        shared = place if "://" in place else str(Path(place).expanduser())
        return f"{shared.rstrip('/')}/{contract.run}"
    return str(contract.run_dir / place)
