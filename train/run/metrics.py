"""Metrics of steps, and ``metrics.jsonl``: one line per step, even if a restart repeats steps.

A training call dispatches ``compute.steps_per_call`` steps to the devices.
"""

import json
import logging
import math
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np

from train.core.config import Config
from train.run.contract import finite_or_none
from train.run.mfu import mfu
from train.storage import write_atomically

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 8
"""Maximum number of training calls that are dispatched but unfinished. When there are more, the
process waits for the oldest."""
MAX_SECONDS_IN_FLIGHT = 2.0
"""How long the unfinished training calls may take in total, because after SIGTERM the save waits
for them. One call may take longer: while it runs, the host prepares the next."""

OPTIONAL = ("heldout_loss", "mfu", "start_seconds", "save_seconds")
"""Metrics that many steps do not have. The lines of such steps do not contain these keys."""

RATE_CALLS = 20
"""Number of training calls over which ``tokens_per_second`` is averaged."""


@dataclass(frozen=True)
class Metrics:
    """Metrics of a finished step: losses in nats per token, ``time`` in Unix seconds.

    ``loss`` and ``grad_norm`` are computed before the step's update, ``param_norm`` and
    ``heldout_loss`` (if evaluated) after it. ``tokens_per_second`` and ``mfu`` are over all
    processes, and None for the steps of an attempt's first training call. ``mfu`` is also None for
    a device without a published peak. ``start_seconds``, only in the first step of an attempt, is
    the time since the process started. ``save_seconds``, only in the first step after a save, is
    the time for which the save blocked training.
    """

    step: int
    loss: float
    time: float
    tokens_per_second: float | None
    lr: float
    grad_norm: float
    param_norm: float
    heldout_loss: float | None = None
    mfu: float | None = None
    start_seconds: float | None = None
    save_seconds: float | None = None

    @property
    def finite(self) -> bool:
        """Whether loss, gradient and parameters are finite, so that the state may be saved."""
        return all(map(math.isfinite, (self.loss, self.grad_norm, self.param_norm)))


class InFlight:
    """Queue of dispatched steps; it returns their metrics when the device has finished them."""

    def __init__(self, cfg: Config) -> None:
        self._cfg = cfg
        self._pending: deque[tuple[int, dict[str, jax.Array], jax.Array | None]] = deque()
        self._finished: deque[tuple[float, int]] = deque(maxlen=RATE_CALLS + 1)

    def add(
        self, step: int, values: dict[str, jax.Array], heldout_loss: jax.Array | None = None
    ) -> None:
        """Add the metrics of a dispatched training call of n steps.

        ``values`` are arrays (n,) by name, replicated on all devices. ``step`` is the last of the n
        steps, and ``heldout_loss``, if evaluated, is the loss after it.
        """
        self._pending.append((step, values, heldout_loss))

    def finished(self, wait: bool = False) -> Iterator[Metrics]:
        """Remove the finished steps from the queue and yield their metrics, oldest first.

        With ``wait``, wait until all steps in the queue have finished. Otherwise, wait only while
        the queue has more training calls than MAX_IN_FLIGHT and MAX_SECONDS_IN_FLIGHT allow.
        """
        allowed = 0 if wait else self._allowed()
        while self._pending and (
            len(self._pending) > allowed or self._pending[0][1]["loss"].is_ready()
        ):
            step, values, heldout_loss = self._pending.popleft()
            columns = {name: np.asarray(array).tolist() for name, array in values.items()}
            rows = [
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]
            if heldout_loss is not None:
                rows[-1]["heldout_loss"] = float(heldout_loss)
            yield from self._measure(step, rows)

    def _allowed(self) -> int:
        """Return how many training calls may be unfinished; fewer if recent calls took long."""
        calls = len(self._finished) - 1
        if calls < 1:
            return 1
        seconds_per_call = (self._finished[-1][0] - self._finished[0][0]) / calls
        return max(1, min(MAX_IN_FLIGHT, int(MAX_SECONDS_IN_FLIGHT / max(seconds_per_call, 1e-6))))

    def _measure(self, last: int, rows: list[dict[str, float]]) -> list[Metrics]:
        self._finished.append((time.monotonic(), len(rows)))
        seconds = self._finished[-1][0] - self._finished[0][0]
        steps = sum(n for _, n in self._finished) - self._finished[0][1]
        rate = steps * self._cfg.tokens_per_step / seconds if seconds > 0 else None
        share = mfu(rate, self._cfg) if rate else None
        first = last - len(rows) + 1
        return [
            Metrics(step=step, time=time.time(), tokens_per_second=rate, mfu=share, **row)
            for step, row in enumerate(rows, start=first)
        ]


def memory() -> dict[str, int]:
    """Return bytes of memory by name: ``host_bytes`` of this process, and figures of its devices.

    For the fullest device, ``device_bytes`` is what is in use now, ``device_peak_bytes`` the
    maximum so far, and ``device_limit_bytes`` the total. A CPU does not report these three.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
    figures = {"host_bytes": pages * resource.getpagesize()} if pages else {}
    statistics = [device.memory_stats() or {} for device in jax.local_devices()]
    names = {
        "bytes_in_use": "bytes",
        "peak_bytes_in_use": "peak_bytes",
        "bytes_limit": "limit_bytes",
    }
    for jax_name, name in names.items():
        if values := [device[jax_name] for device in statistics if jax_name in device]:
            figures[f"device_{name}"] = max(values)
    return figures


class MetricsLog:
    """``metrics.jsonl``, open for appending; opening it removes the lines of steps after ``step``.

    The line of every ``memory_every``-th step includes ``memory()``; with 0, no line does.
    """

    def __init__(self, path: Path, step: int, memory_every: int = 0) -> None:
        self._path, self._memory_every, self._report = path, memory_every, log.warning
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            retained = [line for line in lines if _step(line) <= step]
            if len(retained) < len(lines):
                write_atomically(path, "".join(retained))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def write(self, metrics: Metrics) -> dict[str, float]:
        """Append a step as one line of JSON, and return its values by name.

        Numbers have full precision; NaN and infinity become null. A run does not need this file, so
        a failure is logged once and otherwise ignored.
        """
        record = {
            name: finite_or_none(value)
            for name, value in asdict(metrics).items()
            if value is not None or name not in OPTIONAL
        }
        if self._memory_every and metrics.step % self._memory_every == 0:
            record |= memory()
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as err:
            self._report("%s: cannot be written: %s", self._path, err.strerror)
            self._report = log.debug
        return record


def _step(line: str) -> float:
    """Return the step of a line; infinity for a line that a killed process left incomplete."""
    try:
        return json.loads(line)["step"] if line.endswith("\n") else math.inf
    except (ValueError, TypeError, KeyError):
        return math.inf
