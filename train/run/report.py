"""Where process 0 writes metrics: metrics.jsonl and, if configured, TensorBoard and W&B.

A thread for each service sends the metrics, so that a service that is slow or cannot be reached
delays no step.
"""

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

from train.core.config import Config
from train.run.contract import Contract
from train.run.metrics import Metrics, MetricsLog
from train.storage import logged_errors

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_SECONDS = 15
"""How long a run waits at its end until a service has received the last metrics."""
FLUSH_SECONDS = 5
"""Minimum interval between flushes of TensorBoard's event file. If the file is in a bucket, each
flush uploads all of it."""
METRICS = "metrics.jsonl"

type Record = dict[str, float]
type Service = AbstractContextManager[Callable[[Record], None]]
"""Context manager for a connection to a service. It yields a function that sends the metrics of a
step; at its end, it sends what the service has not received yet."""


class Report:
    """Writer of an attempt's metrics to metrics.jsonl and, if configured, TensorBoard and W&B.

    ``step`` is the step after which the attempt resumes.
    """

    def __init__(self, cfg: Config, contract: Contract, step: int) -> None:
        self._log = MetricsLog(contract.run_dir / METRICS, step, cfg.log_every)
        self._senders = []
        if cfg.report.tensorboard:
            self._senders.append(Sender("TensorBoard", tensorboard(cfg, contract, step)))
        if cfg.report.wandb:
            self._senders.append(Sender("W&B", wandb(cfg, contract)))

    def write(self, metrics: Metrics) -> None:
        """Append a finished step to metrics.jsonl; send it to TensorBoard and W&B if configured."""
        record = self._log.write(metrics)
        for sender in self._senders:
            sender.send(record)

    def close(self) -> None:
        """Wait until the services have received all metrics, at most CLOSE_TIMEOUT_SECONDS."""
        end = time.monotonic() + CLOSE_TIMEOUT_SECONDS
        for sender in self._senders:
            sender.close(end)


class Sender:
    """Thread that sends metrics to one service; an error is logged and ends only this thread."""

    def __init__(self, name: str, service: Service) -> None:
        self._name, self._service = name, service
        self._records: SimpleQueue[Record] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, record: Record) -> None:
        """Send the metrics of a step, unless the service has failed."""
        if self._thread.is_alive():
            self._records.put(record)

    def close(self, end: float) -> None:
        """Wait until all metrics are sent, but not longer than until ``end`` (monotonic time)."""
        self._records.put({})
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            log.warning(
                "%s has not received the last metrics within %g s; the file %s has all metrics",
                self._name,
                CLOSE_TIMEOUT_SECONDS,
                METRICS,
            )

    def _run(self) -> None:
        message = f"{self._name}: the run continues without this report"
        with logged_errors(message), self._service as send:
            while record := self._records.get():
                send(record)


@contextmanager
def tensorboard(cfg: Config, contract: Contract, step: int) -> Iterator[Callable[[Record], None]]:
    """Yield a function that writes a step's metrics to TensorBoard's event file.

    ``step`` is the step after which the attempt resumes. Needs no TensorFlow.
    """
    from tensorboardX import SummaryWriter

    # Add the process id to the default file name, which contains only the host and the second, so
    # that another attempt cannot overwrite the file. With purge_step, TensorBoard drops the steps
    # of earlier attempts that this attempt repeats.
    with SummaryWriter(
        _tensorboard_directory(cfg, contract),
        purge_step=step + 1,
        flush_secs=FLUSH_SECONDS,
        filename_suffix=f".{os.getpid()}",
    ) as writer:

        def send(record: Record) -> None:
            for name, value in _values(record).items():
                writer.add_scalar(name, value, record["step"], record["time"])

        yield send


@contextmanager
def wandb(cfg: Config, contract: Contract) -> Iterator[Callable[[Record], None]]:
    """Yield a function that sends a step's metrics to W&B, where all attempts are one W&B run.

    Without an API key, log a warning and record the metrics offline in the run directory.
    """
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    mode = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "")
    if not mode:
        log.warning(
            "W&B: no API key; recording offline in %s. To send the metrics, set WANDB_API_KEY; on "
            'a fleet, set it in secrets (docs/runs.md, "Environment variables and secrets")',
            contract.run_dir / "wandb",
        )
    identity = f"{contract.run} {contract.checkpoints}"
    run = wandb.init(
        project=cfg.report.wandb,
        name=contract.run,
        id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        resume="allow",
        mode=mode or "offline",
        dir=str(contract.run_dir),
        config=asdict(cfg),
        settings=wandb.Settings(
            console="off",
            silent=True,
            finish_timeout=CLOSE_TIMEOUT_SECONDS / 2,
            # Ignore W&B's stop button, which by default interrupts the trainer's main thread.
            stop_fn=lambda: None,
        ),
    )
    # Plot over the trainer's step: W&B's own step cannot decrease, but a new attempt repeats steps.
    run.define_metric("*", step_metric="step")
    yield lambda record: run.log({"step": record["step"], **_values(record)})
    run.finish()


def _values(record: Record) -> Record:
    return {k: v for k, v in record.items() if k not in ("step", "time") and v is not None}


def _tensorboard_directory(cfg: Config, contract: Contract) -> str:
    """Return the directory of the run's event files.

    A relative path is in the run directory. Several runs may share an absolute path or a bucket, so
    each run has a subdirectory there.
    """
    path = cfg.report.tensorboard
    if "://" in path or Path(path).expanduser().is_absolute():
        shared = path if "://" in path else str(Path(path).expanduser())
        return f"{shared.rstrip('/')}/{contract.run}"
    return str(contract.run_dir / path)
