"""How fast a config trains on this machine's devices: tokens a second, MFU, memory."""

import math
import time
from dataclasses import dataclass

import jax
import numpy as np

from train import mesh
from train.config import Config, ModelConfig
from train.metrics import memory
from train.model import init_params
from train.step import SPLIT, fresh_state, update

PEAK_FLOPS = {
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100": 312e12,
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}
"""Published bfloat16 operations a second of one JAX device, by how its kind begins: NVIDIA's data
sheets (SXM, dense) and Google Cloud's TPU pages (a v2's or v3's device is one of a chip's two)."""


@dataclass(frozen=True)
class Figures:
    """What was measured over ``steps`` steps of training.

    ``mfu`` is the share of the devices' published peak, by the PaLM paper's count, and None for
    a device without one. Memory is in bytes, of the fullest device; None where none is counted.
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
        peak = f"{self.peak_bytes / 2**30:.2f} GiB" if self.peak_bytes else "not counted here"
        return (
            f"{self.devices}: {self.tokens_per_second:,.0f} tokens/s, "
            f"{1e3 * self.seconds_per_step:.2f} ms a step over {self.steps} steps\n"
            f"model {self.flops_per_second / 1e12:.3g} TFLOP/s, MFU {mfu}, peak memory {peak}"
        )


def measure(cfg: Config, steps: int) -> Figures:
    """Train on random tokens, twice a call to warm up, then for at least ``steps`` steps.

    Raises ConfigError where the devices can't share the batch.
    """
    devices = mesh.make(cfg)
    windows = _random_windows(cfg, jax.NamedSharding(devices, SPLIT))
    state = jax.jit(fresh_state, static_argnums=0)(cfg)
    for _ in range(2):
        state, values = update(state, windows, cfg)
    jax.block_until_ready((state, values))
    calls = math.ceil(steps / cfg.compute.steps_per_call)
    begun = time.perf_counter()
    for _ in range(calls):
        state, values = update(state, windows, cfg)
    jax.block_until_ready((state, values))
    seconds = (time.perf_counter() - begun) / (calls * cfg.compute.steps_per_call)
    rate = cfg.tokens_per_step / seconds
    flops = rate * flops_per_token(cfg.model)
    kind = jax.devices()[0].device_kind
    peak = next((p for name, p in PEAK_FLOPS.items() if kind.startswith(name)), None)
    return Figures(
        f"{jax.device_count()} x {kind}",
        calls * cfg.compute.steps_per_call,
        seconds,
        rate,
        flops,
        None if peak is None else flops / (peak * jax.device_count()),
        memory().get("device_peak_bytes"),
        float(np.asarray(values["loss"])[-1]),
    )


def flops_per_token(cfg: ModelConfig) -> float:
    """Operations that learning from one token takes, by the PaLM paper's count.

    Six for each parameter of a matrix that tokens are multiplied by (the token embedding is one
    if it is the output layer, too), and 12 · layers · heads · head width · context for attention
    (Chowdhery et al. 2022, arXiv:2204.02311, appendix B). What fills a vocabulary up, and what
    remat computes again, doesn't count.
    """
    shapes = jax.eval_shape(lambda: init_params(jax.random.key(0), cfg))
    matrices = sum(a.size for name, a in shapes.items() if name.startswith("l_") and a.ndim == 3)
    matrices += cfg.vocabulary * cfg.width
    return 6 * matrices + 12 * cfg.layers * cfg.heads * cfg.head_width * cfg.context


def _random_windows(cfg: Config, split: jax.sharding.Sharding) -> jax.Array:
    n, parts = cfg.compute.steps_per_call, cfg.compute.accumulate
    shape = (n, parts, cfg.batch // parts, cfg.model.context + 1)
    draw = np.random.default_rng(cfg.seed).integers(0, cfg.model.vocabulary, shape, np.int32)
    return jax.make_array_from_callback(shape, split, lambda index: draw[index])
