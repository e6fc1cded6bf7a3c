"""Compare compiled training steps for TPU slices: this trainer and MaxText, without a TPU.

    .venv-tpu/bin/python -m bench.compile [--maxtext PYTHON] [--rows 1B/v5e-16 ...]

Estimates the MFU (train/compile/estimate.py) of three models on two slices each. Each estimate is a
range with a low and a high end. Prints a table with one row for each model and slice: this
trainer's range, MaxText's range, and whether both ends of this trainer's range are at least as high
as MaxText's. A row takes minutes of processor time. The models 1B (Llama's layout) and 8B (Llama
3's sizes) have four sequences of 2,048 tokens per chip. The model modern (train/configs/modern.yml)
has eight sequences of 1,024 tokens per chip. Parameters are sharded over all chips (FSDP), layers
are scanned, and ``remat`` is ``dots``, except for 8B on v5e, where it is ``all``.

PYTHON is the Python of an environment with MaxText 0.2.5 and the JAX and libtpu of
requirements/worker-tpu.lock. With PYTHON, MaxText's step is compiled too (compile_maxtext.py) and
estimated in the same way. It has the same model, batch and FSDP, and computes the loss in the same
number of chunks. ``remat_policy`` is ``minimal`` (for ``dots``) or ``full`` (for ``all``), and an
XLA flag switches windowed einsum off. Without PYTHON, the table shows the ranges in the constant
MAXTEXT, which were estimated earlier in the same way. Exits with 1 if an end of this trainer's
range is lower than the same end of MaxText's range.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from train.compile import slices
from train.core.config import Config, build, load

PROJECT = Path(__file__).resolve().parents[1]
MAXTEXT = {
    "1B/v5e-16": (55.2, 65.7),
    "1B/v5p-32": (49.1, 55.9),
    "modern/v5e-16": (41.3, 57.3),
    "modern/v5p-32": (36.8, 49.7),
    "8B/v5p-32": (50.6, 53.1),
    "8B/v5e-64": (45.8, 48.4),
}
"""Estimated MFU of MaxText 0.2.5 in percent: low end and high end of the range."""

LLAMA = {
    "norm": "rms",
    "activation": "swiglu",
    "positions": "rotary",
    "attention_bias": False,
    "feedforward_bias": False,
    "kv_heads": 8,
    "context": 2048,
}
MODELS = {
    "1B": {"layers": 16, "heads": 16, "width": 2048, "feedforward": 5632, "vocabulary": 32000},
    "8B": {"layers": 32, "heads": 32, "width": 4096, "feedforward": 14336, "vocabulary": 128256},
}
SEQUENCES = {"1B": 4, "8B": 4, "modern": 8}
"""Sequences per chip."""


def config(model: str, slice_: slices.Slice) -> Config:
    """Return the trainer's config for one row of the table: a model on a slice."""
    compute = {"dtype": "bfloat16", "fsdp": None, "remat": "dots", "scan_layers": True}
    if model == "8B":
        compute["loss_chunks"] = 8
    if model == "8B" and slice_.version == "v5e":
        compute["remat"] = "all"
    batch = SEQUENCES[model] * slice_.chips
    if model == "modern":
        preset = PROJECT / "train" / "configs" / "modern.yml"
        return load(preset, (f"batch={batch}", "compute.fsdp=null", "compute.scan_layers=true"))
    return build({"batch": batch, "model": LLAMA | MODELS[model], "compute": compute})


def mfu(cfg: Config, slice_: slices.Slice, hlo: str) -> tuple[float, float]:
    """Return the low and the high end of the estimated MFU of a compiled step, in percent."""
    from train.compile.estimate import estimate
    from train.run.mfu import flops_per_token

    costs = estimate(hlo, slice_)
    ideal = flops_per_token(cfg) * cfg.tokens_per_step
    ideal /= slice_.chip.peak_flops * slice_.chips
    return 100 * ideal / costs.high, 100 * ideal / costs.low


def tpufleet_hlo(cfg: Config, slice_: slices.Slice) -> str:
    """Compile this trainer's step and return its HLO."""
    from train.compile.program import compile_step

    return compile_step(cfg, slice_).hlo


def maxtext_hlo(python: str, cfg: Config, slice_: slices.Slice) -> str:
    """Compile MaxText's step of the same model and batch, and return its HLO."""
    model = cfg.model
    settings = {
        "base_num_decoder_layers": model.layers,
        "base_emb_dim": model.width,
        "base_num_query_heads": model.heads,
        "base_num_kv_heads": model.groups,
        "base_mlp_dim": model.feedforward_width,
        "head_dim": model.head_width,
        "vocab_size": model.vocabulary,
        "max_target_length": model.context,
        "per_device_batch_size": cfg.batch // slice_.chips,
        "attention": "flash",
        "remat_policy": {"dots": "minimal", "all": "full"}[cfg.compute.remat],
        "num_vocab_tiling": cfg.compute.loss_chunks,
        "packing": "false",
        "compile_xla_flags": "--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000",
    }
    with tempfile.TemporaryDirectory(prefix="tpufleet-bench-") as directory:
        hlo = Path(directory) / "step.hlo"
        script = Path(__file__).with_name("compile_maxtext.py")
        overrides = [f"{key}={value}" for key, value in settings.items()]
        command = [python, script, str(slice_), hlo, *overrides]
        subprocess.run(command, check=True, cwd=directory, stdout=sys.stderr)
        return hlo.read_text()


def main(arguments: list[str]) -> int:
    """Compile and compare the rows; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--maxtext",
        metavar="PYTHON",
        help="the Python of an environment with MaxText (default: show recorded estimates)",
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=MAXTEXT,
        default=list(MAXTEXT),
        help="models and slices to compile (default: all)",
    )
    args = parser.parse_args(arguments)
    slices.prepare_environment()
    print("| model | slice | this trainer | MaxText | both ends at least MaxText's |")
    print("|---|---|---|---|---|", flush=True)
    is_slower = False
    for row in args.rows:
        model, name = row.split("/")
        slice_ = slices.parse(name)
        cfg = config(model, slice_)
        own_range, maxtext_range = mfu(cfg, slice_, tpufleet_hlo(cfg, slice_)), MAXTEXT[row]
        if args.maxtext:
            maxtext_range = mfu(cfg, slice_, maxtext_hlo(args.maxtext, cfg, slice_))
        reached = all(a >= b for a, b in zip(own_range, maxtext_range, strict=True))
        is_slower |= not reached
        ranges = " | ".join(
            f"{low:.1f} to {high:.1f} %" for low, high in (own_range, maxtext_range)
        )
        print(f"| {model} | {name} | {ranges} | {'yes' if reached else 'no'} |", flush=True)
    return int(is_slower)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
