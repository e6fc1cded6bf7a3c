"""Causal attention, with one implementation per kind of device.

Names of arrays end in their dimensions, as in model.py; q stands for positions of queries, k for
positions of keys and values. Each implementation maps queries (b, q, h, e) and keys and values
(b, k, g, e), with q = k, to (b, q, h, e). A position attends to itself and to earlier positions; in
packed sequences, it attends only to positions of the same document.
The queries are already scaled by 1/sqrt(e) (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1).
The softmax is computed in float32 for every input type.
"""

import jax
import jax.numpy as jnp

from train.core.config import Config, ConfigError

type Segments = jax.Array | None
"""Document number of each position (b, t); None if no sequence has several documents."""

BLOCK = 64
"""Minimum number of queries per block. In measurements with 128 positions, 32 and 64 were best."""

LANES = 128
"""Lanes of a TPU's vector register. The splash kernel needs a multiple of 128 positions."""

MAX_BLOCKS = 8
"""Maximum number of blocks per sequence. More blocks skip more of the masked logits (8 blocks skip
7/16 of all logits), but take longer to compile."""


def causal(
    q_bqhe: jax.Array, k_bkge: jax.Array, v_bkge: jax.Array, kind: str, segments_bt: Segments = None
) -> jax.Array:
    """Compute causal attention with the implementation ``kind``; ``auto`` selects the fastest.

    Keys and values may have fewer heads (g) than queries (h). Each of the g heads then serves h / g
    consecutive query heads (grouped-query attention: Ainslie et al. 2023, arXiv:2305.13245). If the
    batch is sharded, each device computes its own shard.
    """
    if kind == "auto":
        kind = fastest(q_bqhe)
    attend = {"plain": plain, "blocks": blocks, "cudnn": cudnn, "splash": splash}[kind]
    inputs = (q_bqhe, k_bkge, v_bkge, segments_bt)
    if kind in ("cudnn", "splash") and not jax.typeof(q_bqhe).sharding.mesh.empty:
        # cuDNN and splash ignore shardings, so let each device call the kernel on its own shard.
        specs = jax.tree.map(lambda a: jax.typeof(a).sharding.spec, inputs)
        attend = jax.shard_map(attend, in_specs=specs, out_specs=specs[0], check_vma=False)
    return attend(*inputs)


def fastest(q_bqhe: jax.Array) -> str:
    """Return the name of the fastest implementation for this device, dtype and head width."""
    if platform() == "gpu":
        half = q_bqhe.dtype.itemsize == 2
        return "cudnn" if half and cudnn_supports(q_bqhe.shape[3]) else "plain"
    return {"cpu": "blocks", "tpu": "splash"}.get(platform(), "plain")


def platform() -> str:
    """Return the platform that the program is for: the current mesh's, else JAX's default.

    The two differ when a step is compiled for a TPU slice on a machine without a TPU.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def check(cfg: Config) -> None:
    """Raise ConfigError if cuDNN is selected but cannot compute this config on this device."""
    if cfg.compute.attention != "cudnn":
        return
    fits = cfg.compute.dtype == "bfloat16" and cudnn_supports(cfg.model.head_width)
    if platform() != "gpu" or not fits:
        raise ConfigError(
            "compute.attention: cudnn needs a GPU, compute.dtype=bfloat16, and model.head_dim (by "
            "default model.width / model.heads) up to 128 and a multiple of 8, not "
            f"{platform()}, {cfg.compute.dtype} and {cfg.model.head_width}. Set auto: the "
            "trainer then selects an implementation that fits"
        )


def cudnn_supports(head_width: int) -> bool:
    """Return whether cuDNN's kernel supports heads of this width."""
    return head_width % 8 == 0 and head_width <= 128


def cudnn(
    q_bqhe: jax.Array, k_bkge: jax.Array, v_bkge: jax.Array, segments_bt: Segments
) -> jax.Array:
    """Compute attention with cuDNN's fused kernel for NVIDIA GPUs (Dao 2023, arXiv:2307.08691).

    JAX cannot pass document numbers to the kernel, so packed documents need a mask (b, 1, q, k).
    """
    mask = None if segments_bt is None else _same_document(segments_bt, segments_bt)
    return jax.nn.dot_product_attention(
        q_bqhe, k_bkge, v_bkge, mask=mask, scale=1.0, is_causal=True, implementation="cudnn"
    )


def splash(
    q_bqhe: jax.Array, k_bkge: jax.Array, v_bkge: jax.Array, segments_bt: Segments
) -> jax.Array:
    """Compute attention with JAX's splash kernel for TPUs; other devices interpret it (slow).

    The kernel needs a sequence length that is a multiple of LANES, so sequences are padded with
    zeros at the end, which the causal mask excludes.
    """
    # Import the kernel here, because the import takes seconds and only TPUs need the kernel.
    from jax.experimental.pallas.ops.tpu import splash_attention

    t, h = q_bqhe.shape[1:3]
    padding = ((0, 0), (0, 0), (0, -t % LANES), (0, 0))
    q_bhqe, k_bgke, v_bgke = (jnp.pad(a.swapaxes(1, 2), padding) for a in (q_bqhe, k_bkge, v_bkge))
    length = q_bhqe.shape[2]
    size = next(n for n in (512, 256, 128) if length % n == 0)
    kernel = splash_attention.make_splash_mha_single_device(
        mask=splash_attention.MultiHeadMask([splash_attention.CausalMask((length,) * 2)] * h),
        block_sizes=splash_attention.BlockSizes(
            block_q=size,
            block_kv=size,
            block_q_dkv=size,
            block_kv_dkv=size,
            use_fused_bwd_kernel=True,
        ),
        residual_checkpoint_name="attention",
        interpret=platform() != "tpu",
    )
    segments = None
    if segments_bt is not None:
        padded_bt = jnp.pad(segments_bt, (padding[0], padding[2]))
        segments = splash_attention.SegmentIds(padded_bt, padded_bt)
    return jax.vmap(kernel)(q_bhqe, k_bgke, v_bgke, segments)[:, :, :t].swapaxes(1, 2)


def plain(
    q_bqhe: jax.Array, k_bkge: jax.Array, v_bkge: jax.Array, segments_bt: Segments
) -> jax.Array:
    """Compute attention for all queries at once, with the keys after each query masked."""
    q_bhqe, k_bhke, v_bhke = _by_head(q_bqhe, k_bkge, v_bkge)
    return _attend(q_bhqe, k_bhke, v_bhke, 0, segments_bt).swapaxes(1, 2)


def blocks(
    q_bqhe: jax.Array, k_bkge: jax.Array, v_bkge: jax.Array, segments_bt: Segments
) -> jax.Array:
    """Compute attention for one block of queries at a time, without the keys after that block."""
    q_bhqe, k_bhke, v_bhke = _by_head(q_bqhe, k_bkge, v_bkge)
    t = q_bhqe.shape[2]
    size = max(BLOCK, -(-t // MAX_BLOCKS))
    outputs = [
        _attend(
            *(q_bhqe[:, :, i : i + size], k_bhke[:, :, : i + size], v_bhke[:, :, : i + size], i),
            None if segments_bt is None else segments_bt[:, : i + size],
        )
        for i in range(0, t, size)
    ]
    return jnp.concatenate(outputs, axis=2).swapaxes(1, 2)


def _by_head(*arrays: jax.Array) -> list[jax.Array]:
    """Move the head axis before positions, and repeat key and value heads to match query heads."""
    h = arrays[0].shape[2]
    repeated = (a if a.shape[2] == h else jnp.repeat(a, h // a.shape[2], axis=2) for a in arrays)
    return [a.swapaxes(1, 2) for a in repeated]


def _same_document(segments_bq: jax.Array, segments_bk: jax.Array) -> jax.Array:
    """Return the mask (b, 1, q, k) of the keys that are in the same document as a query."""
    return (segments_bq[:, :, None] == segments_bk[:, None])[:, None]


def _attend(
    q_bhqe: jax.Array, k_bhke: jax.Array, v_bhke: jax.Array, first: int, segments_bk: Segments
) -> jax.Array:
    """Compute attention of queries from position ``first`` on; keys begin at position 0."""
    dtype = q_bhqe.dtype
    scores_bhqk = jnp.einsum("bhqe,bhke->bhqk", q_bhqe, k_bhke, preferred_element_type=jnp.float32)
    q, k = scores_bhqk.shape[2:]
    visible = first + jnp.arange(q)[:, None] >= jnp.arange(k)
    if segments_bk is not None:
        visible &= _same_document(segments_bk[:, first:], segments_bk)
    scores_bhqk = jnp.where(visible, scores_bhqk, -jnp.inf)
    max_bhq1 = jax.lax.stop_gradient(jnp.max(scores_bhqk, axis=-1, keepdims=True))
    weights_bhqk = jnp.exp(scores_bhqk - max_bhq1)
    sums_bhq1 = jnp.sum(weights_bhqk, axis=-1, keepdims=True)
    # Multiply by the values first, and divide by the sums afterwards: this divides only e numbers
    # per query (the product) instead of k (the weights).
    y_bhqe = jnp.einsum(
        "bhqk,bhke->bhqe", weights_bhqk.astype(dtype), v_bhke, preferred_element_type=jnp.float32
    )
    return (y_bhqe / sums_bhq1).astype(dtype)
