"""``metrics.jsonl``: one line a step, and no line of a step that was undone by a restart."""

import json
import math
import resource
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np

from train.contract import finite_or_none, write_atomically

MAX_IN_FLIGHT = 8
"""Calls that may be dispatched before the oldest one's losses are there."""

RATE_CALLS = 20
"""Calls that the rate of tokens is a mean over."""


@dataclass(frozen=True)
class Metrics:
    """A finished step: ``loss`` in nats a token, ``time`` in unix seconds.

    ``loss`` and ``grad_norm`` are those before the step's update, ``param_norm`` is the one after
    it, as is ``heldout_loss``, where one was asked for. ``tokens_per_second`` counts all
    processes; the steps of an attempt's first call have none.
    """

    step: int
    loss: float
    time: float
    tokens_per_second: float | None
    lr: float
    grad_norm: float
    param_norm: float
    heldout_loss: float | None = None

    @property
    def finite(self) -> bool:
        """Whether the step left numbers behind, and parameters that may be saved."""
        return all(map(math.isfinite, (self.loss, self.grad_norm, self.param_norm)))


class InFlight:
    """Steps that the device still works on: their numbers are fetched when they are there."""

    def __init__(self, tokens_per_step: int) -> None:
        self._tokens_per_step = tokens_per_step
        self._pending: deque[tuple[int, dict[str, jax.Array], jax.Array | None]] = deque()
        self._finished: deque[tuple[float, int]] = deque(maxlen=RATE_CALLS + 1)

    def add(
        self, step: int, values: dict[str, jax.Array], heldout_loss: jax.Array | None = None
    ) -> None:
        """Take a dispatched call's scalars, an array (n,) each, the same on all processes.

        ``step`` is the last of its n steps, and ``heldout_loss`` belongs to that one.
        """
        self._pending.append((step, values, heldout_loss))

    def finished(self, wait: bool = False) -> list[Metrics]:
        """Return the steps that are done, oldest first; with ``wait``, all of them."""
        allowed = 0 if wait else MAX_IN_FLIGHT
        done = []
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
            done += self._measure(step, rows)
        return done

    def _measure(self, last: int, rows: list[dict[str, float]]) -> list[Metrics]:
        self._finished.append((time.monotonic(), len(rows)))
        seconds = self._finished[-1][0] - self._finished[0][0]
        steps = sum(n for _, n in self._finished) - self._finished[0][1]
        rate = steps * self._tokens_per_step / seconds if seconds > 0 else None
        first = last - len(rows) + 1
        return [
            Metrics(step=step, time=time.time(), tokens_per_second=rate, **row)
            for step, row in enumerate(rows, start=first)
        ]


def memory() -> dict[str, int]:
    """Measure, in bytes: this process's host memory, and the fullest of its devices.

    ``device_bytes`` is what is in use, ``device_peak_bytes`` the most that ever was, and
    ``device_limit_bytes`` what there is; a CPU keeps no such account.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
    figures = {"host_bytes": pages * resource.getpagesize()} if pages else {}
    accounts = [device.memory_stats() or {} for device in jax.local_devices()]
    names = {
        "bytes_in_use": "bytes",
        "peak_bytes_in_use": "peak_bytes",
        "bytes_limit": "limit_bytes",
    }
    for theirs, ours in names.items():
        if found := [account[theirs] for account in accounts if theirs in account]:
            figures[f"device_{ours}"] = max(found)
    return figures


class MetricsLog:
    """The file, opened to go on behind step ``step``: what lies beyond it is dropped.

    Each ``memory_every``-th step's line has the figures of ``memory``, too; with 0, none has.
    """

    def __init__(self, path: Path, step: int, memory_every: int = 0) -> None:
        self._memory_every = memory_every
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if _step(line) <= step]
            if len(kept) < len(lines):
                write_atomically(path, "".join(kept))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def write(self, metrics: Metrics) -> None:
        """Append one line; numbers are written so that they read back to the same bits.

        JSON knows no not-a-number: it is written as null.
        """
        record = {name: finite_or_none(value) for name, value in asdict(metrics).items()}
        if metrics.heldout_loss is None:
            del record["heldout_loss"]
        if self._memory_every and metrics.step % self._memory_every == 0:
            record |= memory()
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


def _step(line: str) -> float:
    """The step of a line, and infinity for one that a killed process left half written."""
    try:
        return json.loads(line)["step"] if line.endswith("\n") else math.inf
    except (ValueError, TypeError, KeyError):
        return math.inf
