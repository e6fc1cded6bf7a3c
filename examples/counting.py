"""A trainer for a container image, without dependencies: counts steps, saves on SIGTERM, resumes.

Usage, with this file as train.py in the image: python train.py CHECKPOINTS [DEVICE]

CHECKPOINTS is a directory that all workers share, such as /mnt/shared/checkpoints/RUN, not gs://.
The trainer keeps the device file DEVICE, such as /dev/accel0, open until it exits, as a real
trainer does with a TPU. It prints the text of the file ``who`` in the working directory and the
value of the environment variable FROM_IMAGE. Only the image has both, so the output shows that the
trainer runs in the image.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

SAVED = 75
asked = []


def main(checkpoints: Path, device: str) -> int:
    """Count steps until SIGTERM, then save; return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    held = Path(device).open() if device else None  # noqa: SIM115 - held until the end
    rank, run_dir = os.environ["TPUFLEET_PROCESS_ID"], Path(os.environ["TPUFLEET_RUN_DIR"])
    found = sorted(int(path.name) for path in checkpoints.glob("*") if path.name.isdecimal())
    step = found[-1] if found else 0
    print(f"{Path('who').read_text().strip()}: from step {step}, {os.environ['FROM_IMAGE']}")
    print(f"user {os.getuid()}, holds {held and held.name}", flush=True)
    while not asked:
        time.sleep(0.1)
        step += 1
        beat = {"state": "training", "step": step, "steps": 10**6, "time": time.time()}
        new = run_dir / ".heartbeat"
        new.write_text(json.dumps(beat | {"loss": 1.0, "tokens_per_second": 1.0}))
        new.replace(run_dir / "heartbeat.json")
    if rank == "0":
        (checkpoints / str(step)).mkdir(parents=True)
        (checkpoints / str(step) / "state").write_text(str(step))
    return SAVED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
