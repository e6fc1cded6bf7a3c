"""Benchmark of a config on this machine's devices: tokens per second, MFU, memory."""

import math
import time
from dataclasses import dataclass

import jax
import numpy as np

from train import mesh
from train.config import Config
from train.metrics import memory
from train.mfu import flops_per_token, mfu
from train.step import BATCH_SPEC, fresh_state, update


@dataclass(frozen=True)
class BenchResult:
    """Result of measuring ``steps`` training steps.

    ``mfu`` is the model FLOPs utilization as PaLM defines it, None for a device without a published
    peak. ``peak_bytes`` is the peak memory of the fullest device, None if devices do not report it.
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
    """Measure at least ``steps`` training steps on random tokens, after two warm-up calls.

    Raises ConfigError if the batch does not divide evenly over the devices.
    """
    devices = mesh.make(cfg)
    batches = _random_batches(cfg, jax.NamedSharding(devices, BATCH_SPEC))
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
        rate * flops_per_token(cfg.model),
        mfu(rate, cfg.model),
        memory().get("device_peak_bytes"),
        float(np.asarray(values["loss"])[-1]),
    )


def _random_batches(cfg: Config, sharding: jax.sharding.Sharding) -> jax.Array:
    n, microbatches = cfg.compute.steps_per_call, cfg.compute.accumulate
    shape = (n, microbatches, cfg.batch // microbatches, cfg.model.context + 1)
    tokens = np.random.default_rng(cfg.seed).integers(0, cfg.model.vocabulary, shape, np.int32)
    return jax.make_array_from_callback(shape, sharding, lambda index: tokens[index])
