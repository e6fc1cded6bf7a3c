"""Measure how long a save of a big state blocks training, and how much memory it needs.

    .venv/bin/python -m bench.checkpoint [--config train/configs/350m.yml] [--directory DIR]

Creates the config's state of step 0 (parameters and optimizer moments) on one device of this
machine, and saves it twice. During each save, a new state replaces the saved one, as in training,
and the process's memory is sampled. The printed figures are those of the second save, because the
first one also loads Orbax's modules. The time of a NumPy copy of the state is printed as well: a
save in the background first copies the state, so it blocks training for at least that time. Exits
with 1 if a target is missed.
"""

import argparse
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

TARGET_SECONDS = {"cpu": 1.0, "gpu": 2.0}
TARGET_MEMORY = 1.3
"""The most memory that a save may add to this process, as a multiple of the state's size."""


class Memory:
    """Sampler of this process's resident memory during a ``with`` block.

    ``before`` is the memory at the start of the block, ``peak`` the maximum in it, both in bytes.
    """

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
    """Measure two saves and print the figures; return 1 if a target is missed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--config",
        default="train/configs/350m.yml",
        help="the config whose state is saved (default: %(default)s)",
    )
    parser.add_argument("--directory", help="where to save (default: TMPDIR, otherwise /tmp)")
    args = parser.parse_args()

    import jax
    import numpy as np

    from train.core.config import CheckpointConfig, load
    from train.core.step import State, fresh_state
    from train.run import mesh
    from train.run.checkpoint import Checkpoints

    cfg = load(args.config, ["batch=8"])
    mesh.make_training_mesh(cfg, jax.devices()[:1])
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
    with tempfile.TemporaryDirectory(prefix="tpufleet-bench-", dir=args.directory) as directory:
        checkpoints = Checkpoints(directory, CheckpointConfig(keep=1), {})
        for step in (1, 2):
            with Memory() as memory:
                begun = time.monotonic()
                checkpoints.save(step, state)
                blocked = time.monotonic() - begun
                state = next_state(state)
                checkpoints.wait()
                total_s = time.monotonic() - begun
        checkpoints.close()

    target = TARGET_SECONDS["cpu" if jax.default_backend() == "cpu" else "gpu"]
    share = (memory.peak - memory.before) / size
    print(f"state              {size / 1e9:.2f} GB on one {jax.devices()[0].device_kind}")
    print(
        f"training blocked   {blocked:.2f} s   (target {target:g} s; "
        f"a NumPy copy: {copy_seconds:.2f} s)"
    )
    print(f"save complete in   {total_s:.2f} s   ({size / total_s / 1e6:.0f} MB/s)")
    print(f"memory added       {share:.2f} times the state   (target {TARGET_MEMORY:g})")
    reached = blocked <= target and share <= TARGET_MEMORY
    print(f"targets: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
