"""A PyTorch DDP trainer on CPU (gloo) that saves on SIGTERM and resumes from its checkpoint.

Usage: tpufleet_launch torch -- python ddp.py CHECKPOINTS

CHECKPOINTS is a directory that all workers share, such as /mnt/shared/checkpoints/RUN, not gs://.
"""

import signal
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SAVED = 75
asked_to_stop = threading.Event()


def main(checkpoints: Path) -> int:
    """Train until a process receives SIGTERM, then save; return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.set())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    step, newest = 0, checkpoints / "newest.pt"
    if newest.exists():
        state = torch.load(newest)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"resumed from step {step}", flush=True)
    while True:
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        step += 1
        print(f"step {step}", flush=True)
        # All processes must exit after the same step. Otherwise, those that continue would wait
        # forever for the others in all_reduce.
        stop = torch.tensor(int(asked_to_stop.is_set()))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            if dist.get_rank() == 0:
                checkpoints.mkdir(parents=True, exist_ok=True)
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step,
                }
                torch.save(state, newest.with_suffix(".new"))
                newest.with_suffix(".new").replace(newest)
                print(f"saved step {step}", flush=True)
            dist.barrier()
            dist.destroy_process_group()
            # SIGTERM can reach this process later than the others. Ignore it now, so that it does
            # not kill the process while Python exits.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return SAVED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
