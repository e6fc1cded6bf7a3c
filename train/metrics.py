"""``metrics.jsonl``: one line a step, and no line of a step that was undone by a restart."""

import json
import math
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

import jax

from train.contract import finite_or_none, write_atomically

MAX_IN_FLIGHT = 8
"""Steps that may be dispatched before the oldest one's loss is there."""

RATE_STEPS = 20
"""Steps that the rate of tokens is a mean over."""


@dataclass(frozen=True)
class Metrics:
    """A finished step: ``loss`` in nats a token, ``time`` in unix seconds.

    ``loss`` and ``grad_norm`` are those before the step's update, ``param_norm`` is the one after
    it. ``tokens_per_second`` counts all processes; the first step of an attempt has none.
    """

    step: int
    loss: float
    time: float
    tokens_per_second: float | None
    lr: float
    grad_norm: float
    param_norm: float

    @property
    def finite(self) -> bool:
        """Whether the step left numbers behind, and parameters that may be saved."""
        return all(map(math.isfinite, (self.loss, self.grad_norm, self.param_norm)))


class InFlight:
    """Steps that the device still works on: their numbers are fetched when they are there."""

    def __init__(self, tokens_per_step: int) -> None:
        self._tokens_per_step = tokens_per_step
        self._pending: deque[tuple[int, dict[str, jax.Array]]] = deque()
        self._finished: deque[float] = deque(maxlen=RATE_STEPS + 1)

    def add(self, step: int, values: dict[str, jax.Array]) -> None:
        """Take a dispatched step's scalars, which are the same on all processes."""
        self._pending.append((step, values))

    def finished(self, wait: bool = False) -> list[Metrics]:
        """Return the steps that are done, oldest first; with ``wait``, all of them."""
        allowed = 0 if wait else MAX_IN_FLIGHT
        done = []
        while self._pending and (
            len(self._pending) > allowed or self._pending[0][1]["loss"].is_ready()
        ):
            step, values = self._pending.popleft()
            numbers = {name: float(value) for name, value in values.items()}
            done.append(self._measure(step, numbers))
        return done

    def _measure(self, step: int, numbers: dict[str, float]) -> Metrics:
        self._finished.append(time.monotonic())
        steps, seconds = len(self._finished) - 1, self._finished[-1] - self._finished[0]
        rate = steps * self._tokens_per_step / seconds if seconds > 0 else None
        return Metrics(step=step, time=time.time(), tokens_per_second=rate, **numbers)


class MetricsLog:
    """The file, opened to go on behind step ``step``: what lies beyond it is dropped."""

    def __init__(self, path: Path, step: int) -> None:
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
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


def _step(line: str) -> float:
    """The step of a line, and infinity for one that a killed process left half written."""
    try:
        return json.loads(line)["step"] if line.endswith("\n") else math.inf
    except (ValueError, TypeError, KeyError):
        return math.inf
