"""Compare this trainer with PyTorch on this CPU, with the model of the bitesizedGPT workshop.

    python bench/bitesized.py --torch-python PYTHON      (or TORCH_PYTHON=PYTHON)

PYTHON is a Python that has torch and NumPy. Both sides train the model of
train/configs/bitesized.yml from the same parameters on the same batches. They alternate in turns of
100 steps, each with an evaluation on held-out text and a completion of a prompt. The first turn of
each side is a warm-up; the next turns count, by default ten. This trainer uses as many JAX devices
(JAX_NUM_CPU_DEVICES) as there are cores, if that divides the batch, otherwise fewer. The PyTorch
side (bitesized_torch.py) first tries several implementations of the model and uses the fastest.
Without ``--torch-python``, does nothing and exits with 0. Exits with 1 if this trainer is less than
TARGET times as fast, if the losses differ, or if PyTorch is so slow that the machine must be busy.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT))

TURN = 100
TARGET = 1.4
TORCH_FLOOR = 20
"""Steps per second that PyTorch reaches on an idle machine; if it is slower, no result is valid."""


def main() -> int:
    """Run this trainer and PyTorch alternately, print the result and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--torch-python",
        metavar="PYTHON",
        default=os.environ.get("TORCH_PYTHON"),
        help="a Python with torch and NumPy (default: the environment variable TORCH_PYTHON)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=1000,
        help=f"measured steps of tpufleet and of PyTorch, a multiple of {TURN} (default: 1000)",
    )
    args = parser.parse_args()
    if args.steps < 1 or args.steps % TURN:
        parser.error(f"--steps: must be a multiple of {TURN}, not {args.steps}")
    if not args.torch_python:
        print("bitesized: skipped: no PyTorch. Use: --torch-python PYTHON")
        return 0
    with tempfile.TemporaryDirectory(prefix="tpufleet-bench-") as directory:
        tpufleet = TpufleetSide(Path(directory), args.steps + TURN)
        torch = TorchSide(args.torch_python, Path(directory), tpufleet)
        turns = args.steps // TURN + 1
        results = [(tpufleet.turn(), torch.turn()) for _ in range(turns)]
        torch.close()
        return report(results, torch.variant, tpufleet)


class TpufleetSide:
    """This project's trainer, run in turns of 100 steps."""

    def __init__(self, directory: Path, steps: int) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax
        import numpy as np

        from train.core.config import load
        from train.core.data import Corpus
        from train.data.corpus import prepare_all
        from train.run.contract import Contract, Heartbeat, check_writable
        from train.run.loop import Run

        # Plan one step more than all turns train. The trainer saves a checkpoint after the last
        # planned step; it never gets there, so no turn's time includes a save.
        overrides = [f"steps={steps + 1}", f"evaluate.every={TURN}", f"sample.every={TURN}"]
        cfg = load(PROJECT / "train" / "configs" / "bitesized.yml", overrides)
        cores = os.cpu_count() or 1
        devices = max(n for n in range(1, cores + 1) if cfg.batch % n == 0)
        jax.config.update("jax_num_cpu_devices", devices)
        run_contract = Contract(
            "bitesized", directory / "tpufleet", directory / "tpufleet" / "checkpoints"
        )
        check_writable(run_contract)
        [self.corpus] = prepare_all(cfg.data)
        self.cfg, self.metrics = cfg, directory / "tpufleet" / "metrics.jsonl"
        self.run = Run(
            cfg,
            run_contract,
            Corpus([self.corpus], cfg),
            Heartbeat(run_contract.run_dir, cfg.steps),
        )
        params = self.run.state["params"]
        np.savez(directory / "start.npz", **{k: np.asarray(v) for k, v in params.items()})

    def turn(self) -> dict[str, Any]:
        """Train for ``TURN`` steps; return their ``seconds``, ``losses`` and ``heldout`` loss.

        The seconds include an evaluation and the completion of a prompt.
        """
        end, start = self.run.step + TURN, time.perf_counter()
        while self.run.step < end:
            self.run.advance()
        self.run.report(wait=True)
        seconds = time.perf_counter() - start
        lines = [json.loads(line) for line in self.metrics.read_text().splitlines()][-TURN:]
        losses = [line["loss"] for line in lines]
        return {"seconds": seconds, "losses": losses, "heldout": lines[-1]["heldout_loss"]}


class TorchSide:
    """The PyTorch side, in its own process; it waits while TpufleetSide trains."""

    def __init__(self, python: str, directory: Path, tpufleet: TpufleetSide) -> None:
        cfg = tpufleet.cfg
        job = {
            "corpus": str(tpufleet.corpus),
            "start": str(directory / "start.npz"),
            "seed": cfg.seed,
            "batch": cfg.batch,
            "evaluate_batches": cfg.evaluate.batches,
            "prompt": cfg.sample.prompt,
            "length": cfg.sample.length,
            "temperature": cfg.sample.temperature,
            "learning_rate": cfg.optimizer.learning_rate,
        }
        command = [python, str(Path(__file__).with_name("bitesized_torch.py")), json.dumps(job)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.variant = self._read()["variant"]

    def turn(self) -> dict[str, Any]:
        """Train for ``TURN`` steps in the PyTorch process.

        Returns the same keys as ``TpufleetSide.turn``.
        """
        self.process.stdin.write(f"{TURN}\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("bitesized: the PyTorch process ended early; see its output above")
        return json.loads(line)


def report(results: list[tuple[dict, dict]], variant: str, tpufleet: TpufleetSide) -> int:
    """Print both sides' steps per second, their ratio, and their losses; return the exit code.

    ``results`` has the figures of each turn as a pair (this trainer, PyTorch). ``variant`` is the
    name of the implementation that the PyTorch side uses.
    """
    counted = results[1:]
    rates = [TURN * len(counted) / sum(pair[i]["seconds"] for pair in counted) for i in (0, 1)]
    ratio = rates[0] / rates[1]
    turns = [
        torch_turn["seconds"] / tpufleet_turn["seconds"] for tpufleet_turn, torch_turn in counted
    ]
    first = zip(*(side["losses"][:10] for side in results[0]), strict=True)
    start = max(abs(a - b) for a, b in first)
    ends = [statistics.mean(side["losses"]) for side in results[-1]]
    heldout = [side["heldout"] for side in results[-1]]
    print(f"steps/s        tpufleet {rates[0]:.1f}   PyTorch {rates[1]:.1f} ({variant})")
    print(f"ratio          {ratio:.2f}   ({TURN} steps each: {min(turns):.2f} to {max(turns):.2f})")
    print(f"loss           tpufleet {ends[0]:.4f}   PyTorch {ends[1]:.4f}   (last {TURN} steps)")
    print(f"held-out loss  tpufleet {heldout[0]:.4f}   PyTorch {heldout[1]:.4f}")
    print(f"first 10 steps differ by at most {start:.1e} nats")
    if rates[1] < TORCH_FLOOR:
        print(f"result not valid: the machine is not idle (PyTorch below {TORCH_FLOOR} steps/s)")
        return 1
    reached = ratio >= TARGET and start < 1e-3 and abs(ends[0] / ends[1] - 1) < 0.02
    print(f"target {TARGET}: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
