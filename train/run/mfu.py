"""Model FLOPs utilization (MFU): the share of the devices' peak that the model's FLOPs use."""

from functools import cache

import jax

from train.core.config import ModelConfig
from train.core.model import init_params, is_layer_matrix
from train.run.tpu_chips import CHIPS

PEAK_FLOPS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU7x": 1153.5e12,
} | {kind: chip.peak_flops for chip in CHIPS.values() for kind in chip.device_kinds}
"""Published peak bfloat16 FLOP/s per JAX device, by its ``device_kind``. Sources: NVIDIA's data
sheets (SXM modules, without sparsity); "Peak compute per chip (bf16)" in Google's pages on the
system architecture, https://docs.cloud.google.com/tpu/docs/v2 and likewise v3 and tpu7x;
tpu_chips.py for the others. A chip of v2, v3 and TPU7x has two JAX devices.
"""


def peak_flops(device_kind: str) -> float | None:
    """Return a device's peak bfloat16 FLOP/s, None if it is not published.

    NVIDIA's ``device_kind`` continues with the memory, as in "NVIDIA H100 80GB HBM3".
    """
    model = next((name for name in PEAK_FLOPS if "NVIDIA" in name and name in device_kind), None)
    return PEAK_FLOPS.get(model or device_kind)


def mfu(tokens_per_second: float, cfg: ModelConfig) -> float | None:
    """Return the MFU of ``tokens_per_second`` on all devices; None without a published peak."""
    peak = peak_flops(jax.devices()[0].device_kind)
    if peak is None:
        return None
    return tokens_per_second * flops_per_token(cfg) / (peak * jax.device_count())


@cache
def flops_per_token(cfg: ModelConfig) -> float:
    """Return the FLOPs to train on one token, as the PaLM paper defines them for MFU.

    These are 6 per parameter of each matrix, including the output layer, plus 12 · layers · heads ·
    head width · context for attention (Chowdhery et al. 2022, arXiv:2204.02311, appendix B).
    Padding of the vocabulary and rematerialization do not count.
    """
    shapes = jax.eval_shape(lambda: init_params(jax.random.key(0), cfg))
    matrices = sum(a.size for name, a in shapes.items() if is_layer_matrix(name))
    matrices += cfg.vocabulary * cfg.width
    return 6 * matrices + 12 * cfg.layers * cfg.heads * cfg.head_width * cfg.context
