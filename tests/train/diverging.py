"""Runs ``python -m train run`` with losses that are NaN from step NAN_STEP on.

Process 0 gets the metrics of a step immediately, process 1 as late as MAX_IN_FLIGHT allows. Run by
test_other_processes.py; the arguments are a config and overrides.
"""

import os
import sys

import jax
import numpy as np

from train.__main__ import main
from train.run import loop
from train.run.metrics import MAX_IN_FLIGHT, InFlight

NAN_STEP = 20


class Loss:
    """The loss of a step: NaN from step NAN_STEP on.

    ``is_ready()`` always returns the argument ``is_ready``.
    """

    def __init__(self, step: int, loss: jax.Array, is_ready: bool) -> None:
        self.loss, self.factor = loss, np.nan if step >= NAN_STEP else 1
        self.is_ready = lambda: is_ready

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        return np.asarray(self.loss) * self.factor


class Diverging(InFlight):
    """The trainer's queue of unfinished steps, with losses that become NaN.

    ``last`` is the newest step.
    """

    is_immediate = True
    last = 0

    def add(
        self, step: int, values: dict[str, jax.Array], heldout_loss: jax.Array | None = None
    ) -> None:
        Diverging.last = step
        loss = Loss(step, values["loss"], self.is_immediate)
        super().add(step, values | {"loss": loss}, heldout_loss)

    def _allowed(self) -> int:
        return super()._allowed() if self.is_immediate else MAX_IN_FLIGHT


if __name__ == "__main__":
    Diverging.is_immediate = os.environ["TPUFLEET_PROCESS_ID"] == "0"
    loop.InFlight = Diverging
    sys.exit(main(["run", *sys.argv[1:]]))
