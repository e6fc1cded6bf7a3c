"""A JAX trainer that saves on SIGTERM and resumes.

It does not call jax.distributed.initialize, because tpufleet_launch does.

Usage: tpufleet_launch jax -- python plain_jax.py CHECKPOINTS

CHECKPOINTS is a directory that all workers share, such as /mnt/shared/checkpoints/RUN, not gs://.
"""

import signal
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental.multihost_utils import process_allgather

SAVED = 75
asked_to_stop = threading.Event()


def main(checkpoints: Path) -> int:
    """Count steps until a process receives SIGTERM, then save; return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.set())
    newest = checkpoints / "step"
    step = int(newest.read_text()) if newest.exists() else 0
    print(f"{jax.process_count()} processes, from step {step}", flush=True)
    while True:
        time.sleep(0.1)  # a real trainer would compute a step here
        step += 1
        print(f"step {step}", flush=True)
        # All processes must exit after the same step. Otherwise, those that continue would wait
        # forever for the others in process_allgather.
        if process_allgather(jnp.array(asked_to_stop.is_set())).any():
            if jax.process_index() == 0:
                checkpoints.mkdir(parents=True, exist_ok=True)
                newest.write_text(str(step))
            # SIGTERM can reach this process later than the others. Ignore it now, so that it does
            # not kill the process while Python exits.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return SAVED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
