"""Measure the presets on this machine's GPU, and compare with a PyTorch GPT of the same shape.

    .venv/bin/python -m bench.train_gpu [--torch-python PYTHON] [--tiny]

The models have 124M, 350M and 1.5B parameters, a context of 1,024 tokens and bfloat16. For each,
prints tokens per second, MFU, peak memory, and FLOP/s as a percentage of those of large matmuls on
the same GPU. Then PyTorch (train_gpu_torch.py) trains in its own process with the same batch.
``--tiny`` uses tiny models, to try this program on any machine. Exits with 1 if a target is missed;
without a GPU, there is no target.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """A preset, its overrides for one GPU of 80 GB, and its target for MFU."""

    name: str
    overrides: tuple[str, ...]
    target: float


CASES = (
    Case("gpt2-124m", ("batch=32", "compute.remat=none"), 0.50),
    Case("350m", ("batch=16", "compute.remat=none", "compute.scan_layers=false"), 0.55),
    Case("1.5b", ("batch=16", "compute.remat=none", "compute.scan_layers=false"), 0.60),
)
SHARED = ("compute.microbatch=null", "compute.loss_chunks=8")
TINY = ("model.layers=2", "model.width=64", "model.heads=4", "model.context=64", "batch=2")
TINY_STEPS, STEPS = 2, 20
FASTER_THAN_TORCH = 1.15


def main() -> int:
    """Measure and print each case; return 1 if a target for MFU or speed is missed.

    Each case runs in a new process, because the peak memory of a process never decreases.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--torch-python",
        metavar="PYTHON",
        default=os.environ.get("TORCH_PYTHON"),
        help="a Python with torch, to compare with (default: environment variable TORCH_PYTHON)",
    )
    parser.add_argument("--tiny", action="store_true", help="use tiny models, to try this program")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument(
        "--only", choices=[case.name for case in CASES], help="measure only this preset"
    )
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure_case(args.case, args.tiny)))
        return 0
    reached = True
    for case in CASES:
        if args.only in (None, case.name):
            command = [sys.executable, "-m", "bench.train_gpu", "--case", case.name]
            figures = run_for_json([*command, *["--tiny"] * args.tiny])
            reached &= report(case, figures, measure_torch(args, figures["job"]))
    return 0 if reached else 1


def measure_case(name: str, tiny: bool) -> dict[str, Any]:
    """Measure the case ``name``, with a tiny model if ``tiny``, in this process.

    Returns the measurements by name. The entry ``job`` is the model, batch and number of steps with
    which PyTorch repeats the measurement.
    """
    # Let JAX reserve 95 % of the GPU's memory instead of 75 %. The measured peak counts only memory
    # in use, not what is reserved.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    import jax

    from train.core.config import load
    from train.run.bench import measure
    from train.run.mfu import flops_per_token

    case = next(case for case in CASES if case.name == name)
    overrides = [*case.overrides, *SHARED, *(TINY if tiny else ())]
    cfg = load(PROJECT / "train" / "configs" / f"{name}.yml", overrides)
    steps = TINY_STEPS if tiny else STEPS
    ceiling = matmul_ceiling(256 if tiny else 8192)
    figures = measure(cfg, steps)
    model = cfg.model
    return {
        "gpu": jax.default_backend() == "gpu",
        "text": str(figures),
        "rate": figures.tokens_per_second,
        "mfu": figures.mfu,
        "of_ceiling": figures.flops_per_second / ceiling,
        "ceiling": ceiling,
        "job": {
            "layers": model.layers,
            "heads": model.heads,
            "width": model.width,
            "context": model.context,
            "vocabulary": model.vocabulary,
            "batch": cfg.batch,
            "steps": steps,
            "flops_per_token": flops_per_token(cfg),
        },
    }


def matmul_ceiling(n: int) -> float:
    """Return the FLOP/s of bfloat16 matmuls of size n x n: the best of five runs of ten matmuls."""
    import jax
    import jax.numpy as jnp

    a = jax.random.normal(jax.random.key(0), (n, n), jnp.bfloat16)
    product = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda _, y: (y @ a) * (n**-0.5), x))
    product(a).block_until_ready()
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        product(a).block_until_ready()
        seconds.append(time.perf_counter() - begun)
    return 10 * 2 * n**3 / min(seconds)


def measure_torch(args: argparse.Namespace, job: dict[str, Any]) -> dict[str, Any] | None:
    """Measure PyTorch on the model of ``job``; return None if no ``--torch-python`` is given."""
    if not args.torch_python:
        return None
    script = str(Path(__file__).with_name("train_gpu_torch.py"))
    return run_for_json([args.torch_python, script, json.dumps(job)])


def run_for_json(command: list[str]) -> dict[str, Any]:
    """Run a command and return the JSON in its last line."""
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"train_gpu: {' '.join(command[:5])} ... ended with {result.returncode}")
    return json.loads(result.stdout.splitlines()[-1])


def report(case: Case, figures: dict[str, Any], torch: dict[str, Any] | None) -> bool:
    """Print the figures of one case; return whether its targets are reached.

    ``figures`` is the result of ``measure_case`` for this trainer. ``torch`` is the result of
    ``measure_torch``, None if PyTorch was not measured.
    """
    print(f"{case.name}: {figures['text']}")
    print(
        f"  {100 * figures['of_ceiling']:.1f} % of the FLOP/s of large matmuls "
        f"({figures['ceiling'] / 1e12:.3g} TFLOP/s, measured now)"
    )
    ratio = None
    if torch is None:
        print("  PyTorch is not measured. Use: --torch-python PYTHON")
    else:
        ratio = figures["rate"] / torch["rate"]
        print(f"  PyTorch {torch['rate']:,.0f} tokens/s ({torch['variant']}): ratio {ratio:.2f}")
    if not figures["gpu"] or figures["mfu"] is None:
        print("  no target is applied: no GPU with a published peak")
        return True
    reached = figures["mfu"] >= case.target and (ratio is None or ratio >= FASTER_THAN_TORCH)
    print(f"  targets MFU {100 * case.target:g} %, {FASTER_THAN_TORCH} times PyTorch: ", end="")
    print("reached" if reached else "missed")
    return reached


if __name__ == "__main__":
    sys.exit(main())
