"""Measure the cost of saving a big state: how long it blocks training, and its memory.

    .venv/bin/python -m bench.checkpoint [--config train/configs/350m.yml] [--directory DIR]

Creates the config's state of step 0 (parameters and moments) on this machine's devices, saves it
twice, and samples the process's memory while a next state replaces it, as in training. The figures
are those of the second save, as the first one also loads Orbax's modules. A plain NumPy copy of the
state is the lower bound of any save in the background. Exits with 1 if a bar is missed.
"""

import argparse
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

BAR_SECONDS = {"cpu": 1.0, "gpu": 2.0}
BAR_MEMORY = 1.3
"""Additional memory in units of the state's size in this process."""


class Memory:
    """Samples the peak of this process's resident memory, in bytes."""

    def __enter__(self) -> "Memory":
        self.peak = self.before = resident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.peak = max(self.peak, resident())


def resident() -> int:
    """Return this process's resident memory in bytes, without mapped files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def main() -> int:
    """Measure and compare with the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="train/configs/350m.yml")
    parser.add_argument("--directory", help="where to save (a new one below the system's)")
    words = parser.parse_args()

    import jax
    import numpy as np

    from train import mesh
    from train.checkpoint import Checkpoints
    from train.config import CheckpointConfig, load
    from train.step import State, fresh_state

    cfg = load(words.config, ["compute.accumulate=1", "batch=8"])
    mesh.make(cfg, jax.devices()[:1])
    state = jax.block_until_ready(jax.jit(fresh_state, static_argnums=0)(cfg))
    size = sum(a.nbytes for a in jax.tree.leaves(state))

    begun = time.monotonic()
    copies = [np.array(a, copy=True) for a in jax.tree.leaves(state)]
    copy_seconds = time.monotonic() - begun
    del copies

    @partial(jax.jit, donate_argnums=0)
    def next_state(state: State) -> State:
        return jax.tree.map(lambda a: a * 2, state)

    state = next_state(state)
    with tempfile.TemporaryDirectory(prefix="tpufleet-bench-", dir=words.directory) as directory:
        checkpoints = Checkpoints(directory, CheckpointConfig(keep=1), {})
        for step in (1, 2):
            with Memory() as memory:
                begun = time.monotonic()
                checkpoints.save(step, state)
                blocked = time.monotonic() - begun
                state = next_state(state)
                checkpoints.wait()
                whole = time.monotonic() - begun
        checkpoints.close()

    bar = BAR_SECONDS["cpu" if jax.default_backend() == "cpu" else "gpu"]
    share = (memory.peak - memory.before) / size
    print(f"state              {size / 1e9:.2f} GB on one {jax.devices()[0].device_kind}")
    print(
        f"training blocked   {blocked:.2f} s   (bar {bar:g} s; a NumPy copy: {copy_seconds:.2f} s)"
    )
    print(f"saved whole after  {whole:.2f} s   ({size / whole / 1e6:.0f} MB/s)")
    print(f"memory beyond      {share:.2f} times the state   (bar {BAR_MEMORY:g})")
    reached = blocked <= bar and share <= BAR_MEMORY
    print(f"bars: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
