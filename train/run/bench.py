"""Benchmark of a config on this machine's devices: tokens per second, MFU, memory."""

import math
import time
from dataclasses import dataclass

import jax
import numpy as np

from train.core.config import Config
from train.core.step import BATCH_SPEC, batch_shape, fresh_state, update
from train.run.mesh import make_training_mesh
from train.run.metrics import memory
from train.run.mfu import flops_per_token, mfu


@dataclass(frozen=True)
class BenchResult:
    """Result of measuring ``steps`` training steps.

    ``flops_per_second`` counts the model's FLOPs on all devices, ``mfu`` is their share of the
    devices' peak, None for a device without a published peak. ``peak_bytes`` is the peak memory of
    the fullest device, None if devices do not report it. ``loss`` is the loss of the last step.
    """

    devices: str
    steps: int
    seconds_per_step: float
    tokens_per_second: float
    flops_per_second: float
    mfu: float | None
    peak_bytes: int | None
    loss: float

    def __str__(self) -> str:
        mfu = f"{100 * self.mfu:.1f} %" if self.mfu is not None else "no published peak"
        peak = f"{self.peak_bytes / 2**30:.2f} GiB" if self.peak_bytes else "not reported"
        return (
            f"{self.devices}: {self.tokens_per_second:,.0f} tokens/s, "
            f"{1e3 * self.seconds_per_step:.2f} ms per step over {self.steps} steps\n"
            f"model {self.flops_per_second / 1e12:.3g} TFLOP/s, MFU {mfu}, peak memory {peak}"
        )


def measure(cfg: Config, steps: int) -> BenchResult:
    """Measure ``steps`` training steps on random tokens, after two calls that warm up.

    A call has ``compute.steps_per_call`` steps; ``steps`` is rounded up to whole calls. Raises
    ConfigError if the batch does not divide evenly over the devices.
    """
    mesh = make_training_mesh(cfg)
    batches = _random_batches(cfg, jax.NamedSharding(mesh, BATCH_SPEC))
    state = jax.jit(fresh_state, static_argnums=0)(cfg)
    for _ in range(2):
        state, values = update(state, batches, cfg)
    jax.block_until_ready((state, values))
    calls = math.ceil(steps / cfg.compute.steps_per_call)
    begun = time.perf_counter()
    for _ in range(calls):
        state, values = update(state, batches, cfg)
    jax.block_until_ready((state, values))
    seconds = (time.perf_counter() - begun) / (calls * cfg.compute.steps_per_call)
    rate = cfg.tokens_per_step / seconds
    return BenchResult(
        f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        calls * cfg.compute.steps_per_call,
        seconds,
        rate,
        rate * flops_per_token(cfg),
        mfu(rate, cfg),
        memory().get("device_peak_bytes"),
        float(np.asarray(values["loss"])[-1]),
    )


def _random_batches(cfg: Config, sharding: jax.NamedSharding) -> jax.Array:
    shape = batch_shape(cfg, cfg.compute.steps_per_call, sharding.mesh.size)
    tokens = np.random.default_rng(cfg.seed).integers(0, cfg.model.vocabulary, shape, np.int32)
    if cfg.data.is_packed:  # make each sequence a single document
        positions = np.arange(shape[-1])
        tokens[..., 1:, :] = [np.ones_like(positions), positions, positions > 0]
    return jax.make_array_from_callback(shape, sharding, lambda index: tokens[index])
