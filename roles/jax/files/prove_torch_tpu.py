"""Prove that TorchTPU computes on each chip, with one process per chip, one after another."""

import json
import os
import sys
from importlib.metadata import version

SIDE = 128


def compute(chip):
    """Multiply matrices on the chip with this number; exit with an error if the result is wrong."""
    os.environ["TPU_VISIBLE_CHIPS"] = str(chip)
    os.environ["TPU_PROCESS_BOUNDS"] = os.environ["TPU_CHIPS_PER_PROCESS_BOUNDS"] = "1,1,1"
    import torch

    ones = torch.ones(SIDE, SIDE, device="tpu")
    total = (ones @ ones).sum().item()
    if total != SIDE**3:
        sys.exit(f"a matmul with torch_tpu returned the sum {total}, expected {SIDE**3}")


chips = int(os.environ["TPUFLEET_CHIPS"])
if not chips:
    sys.exit("TorchTPU needs TPU chips, and this worker has none. Set env_proof: none")
for chip in range(chips):
    child = os.fork()
    if not child:
        compute(chip)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"TorchTPU does not compute on chip {chip}")
versions = {name: version(name) for name in ("torch_tpu", "torch")}
print(json.dumps({**versions, "devices": chips}))
