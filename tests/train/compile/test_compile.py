"""Estimated costs of programs that libtpu has compiled: training steps and known matmuls.

The tests need .venv-tpu, which make env-compile creates; without it, they are skipped.
"""

import json
import os
import subprocess

import pytest

from harness.trainer_processes import PROJECT

PYTHON = PROJECT / ".venv-tpu" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="needs libtpu: make env-compile")

SHAKESPEARE = "train/configs/shakespeare.yml"
O1 = {"JAX_OPTIMIZATION_LEVEL": "O1"}
"""Compiles faster to a slower program, whose speed no test may expect."""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, *arguments],
        cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": str(PROJECT)} | environment,
        check=False,
        capture_output=True,
        text=True,
    )


def test_compile_prints_the_costs_of_a_step_for_two_slices():
    slices = ("--topology", "v5p-8", "--slices", "2")
    done = run("-m", "train", "compile", SHAKESPEARE, "model.layers=1", *slices, **O1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 x v5p:2x2x1: 8 chips, compiled in ")
    for text in (
        "memory per chip ",
        " of 95.73 GiB: ",
        "FLOPs per step ",
        "attention kernels ",
        "estimated step ",
        "MFU ",
        "all-reduce         between slices overlapped",
    ):
        assert text in done.stdout


def test_compile_refuses_a_model_that_is_too_large_in_one_line():
    large = ("model.layers=16000", "compute.scan_layers=true")
    done = run("-m", "train", "compile", SHAKESPEARE, "--topology", "v5e-4", *large, **O1)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(
        "train: v5e:2x2: the step does not fit into the memory of a chip ("
    )
    assert done.stderr.count("\n") == 1


PROGRAMS = """
import json, sys
from train.compile import slices
slices.prepare_environment()
import jax, jax.numpy as jnp, numpy as np
from train.compile.estimate import estimate
from train.compile.program import compile_step
from train.core.config import load

slice_ = slices.parse("v5e-4")
mesh = jax.sharding.Mesh(np.array(slices.devices(slice_, 1)), "x")
replicated = jax.NamedSharding(mesh, jax.P())
a = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16, sharding=replicated)

def ten(a, b):
    return jax.lax.scan(lambda x, _: (x @ b, None), a, None, length=10)[0]

matmuls = []
for function in (jnp.matmul, ten):
    hlo = jax.jit(function, out_shardings=replicated).lower(a, a).compile().as_text()
    costs = estimate(hlo, slice_)
    flops, seconds = costs.matmul_flops, costs.high
    matmuls.append((flops / (2 * 4096**3), flops / seconds / slice_.chip.peak_flops))

overrides = ["model.layers=1", "compute.attention=plain", "compute.accumulate=4"]
reduced = {}
for sync in ("step", "microbatch"):
    words = [*overrides, "compute.fsdp=null", f"compute.sync={sync}"]
    cfg = load("train/configs/shakespeare.yml", words)
    rows = estimate(compile_step(cfg, slice_).hlo, slice_).collectives.items()
    reduced[sync] = [
        sum(total.bytes for key, total in rows if "reduce" in key.kind and key.is_in_loop == loop)
        for loop in (True, False)
    ]
json.dump((matmuls, reduced), sys.stdout)
"""


@pytest.fixture(scope="module")
def costs() -> tuple[list[tuple[float, float]], dict[str, tuple[float, float]]]:
    """Run PROGRAMS; return its estimates of matmuls and of training steps.

    The first result has a pair for one matmul and a pair for a loop of ten: the FLOPs, divided by
    those of one matmul, and the FLOP/s, divided by the chip's peak. The second result maps each
    value of ``compute.sync`` to the bytes that a training step reduces across chips: inside and
    outside of loops.
    """
    done = run("-c", PROGRAMS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_matmuls_have_exact_flops_and_a_plausible_speed(costs):
    single, looped = costs[0]
    assert (single[0], looped[0]) == (1, 10)
    assert 0.6 < single[1] < 1
    assert 0.6 < looped[1] < 1


def test_gradients_are_added_up_over_devices_once_per_step(costs):
    reduced, parameters = costs[1], 239_488
    in_loop, per_step = reduced["step"]
    # In the loop over microbatches, only their losses are reduced. Gradients follow after the loop.
    assert in_loop < 0.001 * parameters
    assert 2 * parameters <= per_step < 5 * parameters
    assert reduced["microbatch"][0] > 4 * parameters
