"""The output layer: logits, and their cross-entropy with an explicit gradient.

Names of arrays end in their dimensions, as in model.py; c stands for chunks, s for the positions of
one chunk.
"""

from functools import partial

import jax
import jax.numpy as jnp

from train.core.config import Config, ModelConfig
from train.core.sharding import gradient_spec, local_copy, spread

type Head = tuple[jax.Array, jax.Array | None]
"""The output layer: the matrix head_dv (d, v), and the bias head_v (v,), which may be None."""


def padded_logits(x_btd: jax.Array, head: Head, cfg: ModelConfig) -> jax.Array:
    """Compute next-token logits in float32: (b, t, d) to (b, t, v).

    The logits of the vocabulary's padding are -inf.
    """
    head_dv, head_v = head
    logits_btv = jnp.matmul(x_btd, head_dv, preferred_element_type=jnp.float32)
    if head_v is not None:
        logits_btv += spread(head_v, logits_btv)
    if cfg.padded_vocabulary > cfg.vocabulary:
        is_token_v = jnp.arange(cfg.padded_vocabulary) < cfg.vocabulary
        logits_btv = jnp.where(is_token_v, logits_btv, -jnp.inf)
    return logits_btv


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def cross_entropy(
    x_btd: jax.Array, head: Head, targets_bt: jax.Array, weights_bt: jax.Array, cfg: Config
) -> jax.Array:
    """Return the weighted sum of the cross-entropy of all targets in nats, a float32 scalar.

    Only the logits of one of the ``loss_chunks`` chunks along t are in memory at a time. They are
    not saved for the backward pass: if a gradient is needed, it is computed together with the loss.
    The gradient's matmuls have inputs of ``x_btd``'s dtype and accumulate in float32.
    ``weights_bt`` has no gradient.
    """
    return _forward(x_btd, head, targets_bt, weights_bt, cfg, needs_gradient=False)[0]


def _forward(
    x_btd: jax.Array,
    head: Head,
    targets_bt: jax.Array,
    weights_bt: jax.Array,
    cfg: Config,
    needs_gradient: bool = True,
) -> tuple[jax.Array, tuple[jax.Array | None, Head | None]]:
    """Return the loss and, if needed, its gradients for ``x_btd`` and (in float32) ``head``."""
    head_dv, head_v = head
    chunks = cfg.compute.loss_chunks

    def chunk(
        d_head: Head | None, inputs: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[Head | None, tuple[jax.Array, jax.Array | None]]:
        x_bsd, targets_bs, weights_bs = inputs
        logits_bsv = padded_logits(x_bsd, head, cfg.model)
        is_target_bsv = targets_bs[..., None] == jnp.arange(cfg.model.padded_vocabulary)
        target_bs = jnp.sum(jnp.where(is_target_bsv, logits_bsv, 0), axis=-1)
        normalizer_bs = jax.nn.logsumexp(logits_bsv, axis=-1)
        loss_b = jnp.sum(weights_bs * (normalizer_bs - target_bs), axis=-1)
        if not needs_gradient:
            return d_head, (loss_b, None)
        probability_bsv = jnp.exp(logits_bsv - normalizer_bs[..., None])
        d_bsv = (weights_bs[..., None] * (probability_bsv - is_target_bsv)).astype(x_bsd.dtype)
        product = partial(jnp.einsum, preferred_element_type=jnp.float32)
        d_head_dv = product("bsd,bsv->dv", x_bsd, d_bsv, out_sharding=gradient_spec(head_dv))
        d_head_v = None
        if head_v is not None:
            ones_bs = jnp.ones_like(targets_bs, x_bsd.dtype)
            d_head_v = product("bs,bsv->v", ones_bs, d_bsv, out_sharding=gradient_spec(head_v))
        d_x_bsd = product("bsv,dv->bsd", d_bsv, head_dv).astype(x_bsd.dtype)
        return jax.tree.map(jnp.add, d_head, (d_head_dv, d_head_v)), (loss_b, d_x_bsd)

    def split(a_bt: jax.Array) -> jax.Array:
        b, t, *rest = a_bt.shape
        return a_bt.reshape(b, chunks, t // chunks, *rest).swapaxes(0, 1)

    zero = None
    if needs_gradient:
        zero = jax.tree.map(lambda a: jnp.zeros(a.shape, out_sharding=gradient_spec(a)), head)
    inputs = tuple(split(a) for a in (x_btd, targets_bt, weights_bt))
    d_head, (loss_cb, d_x_cbsd) = jax.lax.scan(chunk, zero, inputs, unroll=chunks == 1)
    d_x_btd = None
    if needs_gradient:
        # State the output sharding: otherwise, the reshape leaves axes of length 1 unsharded.
        d_x_bcsd, spec = d_x_cbsd.swapaxes(0, 1), gradient_spec(x_btd)
        d_x_btd = d_x_bcsd.reshape(x_btd.shape, out_sharding=spec)
    return jnp.sum(loss_cb), (d_x_btd, d_head)


def _backward(
    cfg: Config, gradients: tuple[jax.Array, Head], d_loss: jax.Array
) -> tuple[jax.Array, Head, None, None]:
    d_x_btd, d_head = gradients
    scaled = jax.tree.map(lambda a: (a * local_copy(d_loss)).astype(d_x_btd.dtype), d_head)
    return (d_x_btd * d_loss).astype(d_x_btd.dtype), scaled, None, None


cross_entropy.defvjp(_forward, _backward)
