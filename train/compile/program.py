"""Compilation of the real training step of a config for TPU slices, and the report of its costs."""

import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from train.compile import slices
from train.compile.estimate import Estimate, Transfer, Transfers
from train.compile.slices import Slice
from train.core import step
from train.core.config import Config
from train.run import mesh
from train.run.mfu import flops_per_token
from train.run.tpu_chips import GIB
from train.strict import ConfigError


@dataclass(frozen=True)
class Program:
    """A training step, compiled for ``slices`` equal slices."""

    cfg: Config
    slice: Slice
    slices: int
    hlo: str
    memory: tuple[int, int, int]
    """Bytes per chip of the arguments (parameters, optimizer state and batches), of temporary
    arrays (activations, gradients and gathered parameters), and of the program itself. Results need
    no memory, because the new state replaces the old one."""
    compile_seconds: float

    @property
    def model_flops(self) -> float:
        """FLOPs of a step that count for the MFU, on all chips."""
        return flops_per_token(self.cfg) * self.cfg.tokens_per_step


def compile_step(cfg: Config, slice_: Slice, count: int = 1) -> Program:
    """Compile the training step of ``cfg`` for ``count`` slices, each like ``slice_``.

    Raises ConfigError if the config does not fit the chips, or if the compiler refuses the step,
    for example because it needs too much memory. Call ``slices.prepare_environment`` before JAX is
    imported.
    """
    device_mesh = mesh.make_training_mesh(cfg, slices.devices(slice_, count))
    state = step.abstract_state(cfg, device_mesh)
    batches = jax.ShapeDtypeStruct(
        step.batch_shape(cfg, cfg.compute.steps_per_call, device_mesh.size),
        jnp.int32,
        sharding=jax.NamedSharding(device_mesh, step.BATCH_SPEC),
    )
    begun = time.monotonic()
    try:
        compiled = step.update.lower(state, batches, cfg).compile()
    except jax.errors.JaxRuntimeError as err:
        raise ConfigError(f"{slice_}: {_reason(err)}") from err
    seconds = time.monotonic() - begun
    stats = compiled.memory_analysis()
    memory = (
        stats.argument_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.generated_code_size_in_bytes,
    )
    return Program(cfg, slice_, count, compiled.as_text(), memory, seconds)


def _reason(err: jax.errors.JaxRuntimeError) -> str:
    """Return in one line why the compiler refuses a step, and what may help."""
    first = str(err).splitlines()[0]
    if first.startswith("RESOURCE_EXHAUSTED"):
        return (
            f"the step does not fit into the memory of a chip ({first}). Shard the state over more "
            "chips (compute.fsdp=null), or compute less at a time (compute.remat=all, "
            "compute.loss_chunks, a smaller compute.microbatch, compute.sync=microbatch)"
        )
    return (
        f"the compiler refuses the step ({first}). Try other options of compute, or another "
        "--topology"
    )


def report(program: Program, costs: Estimate) -> str:
    """Format the memory, FLOPs, collectives and estimated time of a step.

    ``costs`` are those of one call of the program.
    """
    chip, n = program.slice.chip, program.cfg.compute.steps_per_call
    chips = program.slice.chips * program.slices
    arguments, temporary, code = program.memory
    low, high = costs.low / n, costs.high / n
    mfu = [program.model_flops / (chip.peak_flops * chips * s) for s in (high, low)]
    rate = [program.cfg.tokens_per_step / s for s in (high, low)]
    name = f"{program.slices} x {program.slice}" if program.slices > 1 else str(program.slice)
    lines = [
        f"{name}: {chips} chips, compiled in {program.compile_seconds:.0f} s",
        f"memory per chip     {sum(program.memory) / GIB:.2f} of {chip.memory / GIB:.2f} GiB: "
        f"parameters, optimizer state and batch {arguments / GIB:.2f}, "
        f"temporary {temporary / GIB:.2f}, program {code / GIB:.2f}",
        f"FLOPs per step      model {program.model_flops:.3g}; per chip: matmuls "
        f"{costs.matmul_flops / n:.3g}, attention kernels {costs.kernel_flops / n:.3g}",
        f"estimated step      {1e3 * low:.1f} to {1e3 * high:.1f} ms, "
        f"{rate[0]:,.0f} to {rate[1]:,.0f} tokens/s, "
        f"MFU {100 * mfu[0]:.1f} to {100 * mfu[1]:.1f} %",
        f"  breakdown in ms   matmuls {1e3 * costs.matmul_seconds / n:.1f}, "
        f"attention kernels {1e3 * costs.kernel_seconds / n:.1f}, "
        f"gathers {1e3 * costs.gather_seconds / n:.1f}, other {1e3 * costs.other_low / n:.1f} to "
        f"{1e3 * costs.other_high / n:.1f}, exposed collectives {1e3 * costs.exposed / n:.1f}",
        "collectives per chip and step",
    ]
    rows = sorted(costs.collectives.items())
    lines += [_row(key, total, n) for key, total in rows] or ["  none"]
    if costs.unknown_loops:
        lines.append(f"not estimated: {costs.unknown_loops} loops of unknown length, counted once")
    return "\n".join(lines)


def _row(key: Transfer, total: Transfers, steps: int) -> str:
    network = "between slices" if key.network == "DCN" else "in a slice"
    overlap = "overlapped" if key.is_overlapped else "exposed"
    loop = "in a loop" if key.is_in_loop else "once"
    return (
        f"  {key.kind:18} {network:14} {overlap:10} {loop:9} {total.count / steps:6.0f} x "
        f"{total.bytes / steps / 1e6:10.1f} MB {1e3 * total.seconds / steps:8.2f} ms"
    )
