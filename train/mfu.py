"""Model FLOPs utilization (MFU): the share of the devices' peak that the model's FLOPs use."""

from functools import cache

import jax

from train.config import ModelConfig
from train.model import init_params

PEAK_FLOPS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
}
"""Published peak bfloat16 FLOP/s per JAX device, by its ``device_kind``. Sources: NVIDIA's data
sheets (SXM, dense); "Peak compute per chip (bf16)" in Google's pages on the system architecture,
https://cloud.google.com/tpu/docs/v4 and likewise v2, v3, v5e, v5p and v6e. A v2 or v3 chip has two
devices, later ones have one. jax/_src/tpu_info.py has the kinds; v5p is "TPU v5", as "lite" is v5e.
"""


def peak_flops(device_kind: str) -> float | None:
    """Return a device's peak bfloat16 FLOP/s, None if it is not published.

    NVIDIA's ``device_kind`` continues with the memory, as in "NVIDIA H100 80GB HBM3".
    """
    model = next((name for name in PEAK_FLOPS if "NVIDIA" in name and name in device_kind), None)
    return PEAK_FLOPS.get(model or device_kind)


def mfu(tokens_per_second: float, cfg: ModelConfig) -> float | None:
    """Return the MFU of training on all devices at this rate; None without a published peak."""
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
    matrices = sum(a.size for name, a in shapes.items() if name.startswith("l_") and a.ndim == 3)
    matrices += cfg.vocabulary * cfg.width
    return 6 * matrices + 12 * cfg.layers * cfg.heads * cfg.head_width * cfg.context
