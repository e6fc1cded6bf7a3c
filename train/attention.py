"""Causal attention, in a form for each device.

Names end in their dimensions, as model.py's do. All forms take queries (b, q, h, e) and keys and
values (b, k, h, e), with as many positions k as q, and give (b, q, h, e): each position attends to
itself and those before it, with scores scaled by 1/sqrt(e) (Vaswani et al. 2017,
arXiv:1706.03762, section 3.2.1). Softmax and its sums are float32 whatever goes in.
"""

import jax
import jax.numpy as jnp

BLOCK = 64
"""Queries that are worked on together: at 128 positions, 32 and 64 are alike, 16 and 128 slow."""

MOST_BLOCKS = 8
"""Each block is compiled by itself; at eight, 7/16 of the scores are never computed."""


def causal(q_bqhe: jax.Array, k_bkge: jax.Array, v_bkge: jax.Array, kind: str) -> jax.Array:
    """Attend with the form named ``kind``; ``auto`` takes ``blocks`` on CPU, else ``plain``.

    Keys and values may have fewer heads: each of those g serves h / g heads in a row (grouped
    queries: Ainslie et al. 2023, arXiv:2305.13245).
    """
    if kind == "auto":
        kind = "blocks" if jax.default_backend() == "cpu" else "plain"
    shared = q_bqhe.shape[2] // k_bkge.shape[2]
    k_bkhe, v_bkhe = (jnp.repeat(a, shared, axis=2) if shared > 1 else a for a in (k_bkge, v_bkge))
    return {"plain": plain, "blocks": blocks}[kind](q_bqhe, k_bkhe, v_bkhe)


def plain(q_bqhe: jax.Array, k_bkhe: jax.Array, v_bkhe: jax.Array) -> jax.Array:
    """Compute all scores at once and mask those of later positions."""
    q_bhqe, k_bhke, v_bhke = (a.swapaxes(1, 2) for a in (q_bqhe, k_bkhe, v_bkhe))
    return _attend(q_bhqe, k_bhke, v_bhke, 0).swapaxes(1, 2)


def blocks(q_bqhe: jax.Array, k_bkhe: jax.Array, v_bkhe: jax.Array) -> jax.Array:
    """Go through the queries by blocks, and never look at keys behind a block's end."""
    q_bhqe, k_bhke, v_bhke = (a.swapaxes(1, 2) for a in (q_bqhe, k_bkhe, v_bkhe))
    t = q_bhqe.shape[2]
    size = max(BLOCK, -(-t // MOST_BLOCKS))
    done = [
        _attend(q_bhqe[:, :, i : i + size], k_bhke[:, :, : i + size], v_bhke[:, :, : i + size], i)
        for i in range(0, t, size)
    ]
    return jnp.concatenate(done, axis=2).swapaxes(1, 2)


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
