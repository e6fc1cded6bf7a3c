"""Model FLOPs utilization (MFU): the share of the devices' peak that the model's FLOPs use."""

from functools import cache

import jax

from train.core import lora, optimizer
from train.core.config import Config
from train.core.model import is_layer_matrix
from train.run.tpu_chips import CHIPS

PEAK_FLOPS = {
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU7x": 1153.5e12,
} | {kind: chip.peak_flops for chip in CHIPS.values() for kind in chip.device_kinds}
"""Published peak bfloat16 FLOP/s per JAX device, by its ``device_kind``. A chip of v2, v3 and TPU7x
has two JAX devices, each with half of the chip's peak. Sources: for GPUs, NVIDIA's data sheets
(without sparsity); for TPU v2, v3 and TPU7x, "Peak compute per chip (bf16)" in
https://docs.cloud.google.com/tpu/docs/v2, v3 and tpu7x; for other TPUs, see tpu_chips.py.
"""


def mfu(tokens_per_second: float, cfg: Config) -> float | None:
    """Return the MFU of ``tokens_per_second`` on all devices; None without a published peak."""
    peak = PEAK_FLOPS.get(jax.devices()[0].device_kind)
    if peak is None:
        return None
    return tokens_per_second * flops_per_token(cfg) / (peak * jax.device_count())


@cache
def flops_per_token(cfg: Config) -> float:
    """Return the FLOPs to train on one token, as the PaLM paper defines them for MFU.

    These are 6 per parameter of each matrix, including the output layer, plus 12 · layers · heads ·
    head width · context for attention (Chowdhery et al. 2022, arXiv:2204.02311, appendix B). A
    matrix that is not trained counts 4 instead of 6 per parameter; one with a LoRA adapter counts
    as trained. Vocabulary padding, rematerialization and the products of adapters do not count.
    """
    model = cfg.model
    params = jax.eval_shape(lambda: lora.init_params(cfg))
    learned = {lora.matrix(name) for name in optimizer.trainable_names(params, cfg)}
    layers = [name for name in params if is_layer_matrix(name) and not lora.is_adapter(name)]
    sizes = {name: params[name].size for name in layers}
    sizes["tokens_vd" if model.tied else "head_dv"] = model.vocabulary * model.width
    matrices = sum((6 if name in learned else 4) * size for name, size in sizes.items())
    return matrices + 12 * model.layers * model.heads * model.head_width * model.context
