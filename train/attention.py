"""Causal attention, in a form for each device.

Names end in their dimensions, as model.py's do. All forms take queries (b, q, h, e) and keys and
values (b, k, g, e), with as many positions k as q, and give (b, q, h, e): each position attends to
itself and those before it, with scores scaled by 1/sqrt(e) (Vaswani et al. 2017,
arXiv:1706.03762, section 3.2.1). Softmax and its sums are float32 whatever goes in.
"""

import jax
import jax.numpy as jnp

from train.config import Config, ConfigError

BLOCK = 64
"""Queries that are worked on together: at 128 positions, 32 and 64 are alike, 16 and 128 slow."""

LANES = 128
"""A TPU's vector lanes."""

MOST_BLOCKS = 8
"""Each block is compiled by itself; at eight, 7/16 of the scores are never computed."""


def causal(q_bqhe: jax.Array, k_bkge: jax.Array, v_bkge: jax.Array, kind: str) -> jax.Array:
    """Attend with the form named ``kind``; ``auto`` takes the device's.

    Keys and values may have fewer heads: each of those g serves h / g heads in a row (grouped
    queries: Ainslie et al. 2023, arXiv:2305.13245). Where the batch is shared by devices, each
    attends in its own part of it.
    """
    if kind == "auto":
        kind = _for_device(q_bqhe)
    form = {"plain": plain, "blocks": blocks, "cudnn": cudnn, "splash": splash}[kind]
    how = jax.typeof(q_bqhe).sharding
    if kind in ("cudnn", "splash") and not how.mesh.empty:  # kernels that know of no sharding
        form = jax.shard_map(form, in_specs=(how.spec,) * 3, out_specs=how.spec, check_vma=False)
    return form(q_bqhe, k_bkge, v_bkge)


def _for_device(q_bqhe: jax.Array) -> str:
    """Name the form for this device."""
    if jax.default_backend() == "gpu":
        half = q_bqhe.dtype.itemsize == 2
        return "cudnn" if half and cudnn_takes(q_bqhe.shape[3]) else "plain"
    return {"cpu": "blocks", "tpu": "splash"}.get(jax.default_backend(), "plain")


def check(cfg: Config) -> None:
    """Raise ConfigError for cuDNN's kernel where the device, the dtype or the heads don't fit."""
    if cfg.compute.attention != "cudnn":
        return
    fits = cfg.compute.dtype == "bfloat16" and cudnn_takes(cfg.model.head_width)
    if jax.default_backend() != "gpu" or not fits:
        raise ConfigError(
            "compute.attention: cudnn needs a GPU, compute.dtype bfloat16, and heads (model.width "
            f"/ model.heads) up to 128 wide, in eights, not {jax.default_backend()}, "
            f"{cfg.compute.dtype} and {cfg.model.head_width}; auto takes what fits"
        )


def cudnn_takes(head_width: int) -> bool:
    """Whether cuDNN's kernel has heads of this width."""
    return head_width % 8 == 0 and head_width <= 128


def cudnn(q_bqhe: jax.Array, k_bkge: jax.Array, v_bkge: jax.Array) -> jax.Array:
    """Let cuDNN's fused kernel do it, on an NVIDIA GPU (Dao 2023, arXiv:2307.08691)."""
    return jax.nn.dot_product_attention(
        q_bqhe, k_bkge, v_bkge, is_causal=True, implementation="cudnn"
    )


def splash(q_bqhe: jax.Array, k_bkge: jax.Array, v_bkge: jax.Array) -> jax.Array:
    """Let JAX's splash kernel do it, on a TPU; elsewhere it is interpreted, slowly, for tests.

    The kernel wants positions and widths in multiples of its lanes. Zeros fill them up: behind
    the last query nothing sees them, and in a head's width they add nothing to any product.
    """
    # Imported here: it takes seconds, and only a TPU's start needs it.
    from jax.experimental.pallas.ops.tpu import splash_attention

    t, h, e = q_bqhe.shape[1:]
    filler = ((0, 0), (0, 0), (0, -t % LANES), (0, -e % LANES))
    q_bhqe, k_bgke, v_bgke = (
        jnp.pad(a.swapaxes(1, 2), filler) for a in (q_bqhe * e**-0.5, k_bkge, v_bkge)
    )
    length = q_bhqe.shape[2]
    size = next(n for n in (1024, 512, 256, 128) if length % n == 0)
    kernel = splash_attention.make_splash_mha_single_device(
        mask=splash_attention.MultiHeadMask([splash_attention.CausalMask((length,) * 2)] * h),
        block_sizes=splash_attention.BlockSizes(
            block_q=size,
            block_kv=size,
            block_q_dkv=size,
            block_kv_dkv=size,
            block_q_dq=size,
            block_kv_dq=size,
        ),
        interpret=jax.default_backend() != "tpu",
    )
    return jax.vmap(kernel)(q_bhqe, k_bgke, v_bgke)[:, :, :t, :e].swapaxes(1, 2)


def plain(q_bqhe: jax.Array, k_bkge: jax.Array, v_bkge: jax.Array) -> jax.Array:
    """Compute all scores at once and mask those of later positions."""
    q_bhqe, k_bhke, v_bhke = _by_head(q_bqhe, k_bkge, v_bkge)
    return _attend(q_bhqe, k_bhke, v_bhke, 0).swapaxes(1, 2)


def blocks(q_bqhe: jax.Array, k_bkge: jax.Array, v_bkge: jax.Array) -> jax.Array:
    """Go through the queries by blocks, and never look at keys behind a block's end."""
    q_bhqe, k_bhke, v_bhke = _by_head(q_bqhe, k_bkge, v_bkge)
    t = q_bhqe.shape[2]
    size = max(BLOCK, -(-t // MOST_BLOCKS))
    done = [
        _attend(q_bhqe[:, :, i : i + size], k_bhke[:, :, : i + size], v_bhke[:, :, : i + size], i)
        for i in range(0, t, size)
    ]
    return jnp.concatenate(done, axis=2).swapaxes(1, 2)


def _by_head(*arrays: jax.Array) -> list[jax.Array]:
    """Put heads before positions, and give each head of queries its keys and values."""
    h = arrays[0].shape[2]
    whole = (a if a.shape[2] == h else jnp.repeat(a, h // a.shape[2], axis=2) for a in arrays)
    return [a.swapaxes(1, 2) for a in whole]


def _attend(q_bhqe: jax.Array, k_bhke: jax.Array, v_bhke: jax.Array, first: int) -> jax.Array:
    """Attend from the positions ``first`` and up to the keys from position 0 on."""
    dtype, scale = q_bhqe.dtype, q_bhqe.shape[3] ** -0.5
    scores_bhqk = jnp.einsum(
        "bhqe,bhke->bhqk", q_bhqe * scale, k_bhke, preferred_element_type=jnp.float32
    )
    q, k = scores_bhqk.shape[2:]
    seen_qk = first + jnp.arange(q)[:, None] >= jnp.arange(k)
    scores_bhqk = jnp.where(seen_qk, scores_bhqk, -jnp.inf)
    greatest_bhq1 = jax.lax.stop_gradient(jnp.max(scores_bhqk, axis=-1, keepdims=True))
    weights_bhqk = jnp.exp(scores_bhqk - greatest_bhq1)
    sums_bhq1 = jnp.sum(weights_bhqk, axis=-1, keepdims=True)
    # Divided at last, where there are e numbers a query and not k.
    y_bhqe = jnp.einsum(
        "bhqk,bhke->bhqe", weights_bhqk.astype(dtype), v_bhke, preferred_element_type=jnp.float32
    )
    return (y_bhqe / sums_bhq1).astype(dtype)
