"""A decoder-only transformer (GPT-2's layout) as pure functions over a dictionary of arrays.

Names end in their dimensions, one letter each::

    b  windows of a batch       t  positions of a window (q, k: the two sides of attention)
    v  vocabulary               d  width of the residual stream
    h  heads                    e  width of one head, d / h
    f  width of the feed-forward layer            l  layers, stacked into one array

Layout: learned positions, LayerNorm before attention and before the feed-forward layer and once
at the end, GELU, biases everywhere (Radford et al. 2019, "Language Models are Unsupervised
Multitask Learners"; pre-norm: Xiong et al. 2020, arXiv:2002.04745).
"""

import jax
import jax.numpy as jnp

from train.config import ModelConfig

type Params = dict[str, jax.Array]
"""Arrays by name; the names of those that every layer has begin with ``l_`` and axis 0 is l."""

INIT_STD = 0.02
LAYER_NORM_EPSILON = 1e-5


def init_params(key: jax.Array, cfg: ModelConfig) -> Params:
    """Draw fresh float32 parameters.

    Matrices are normal with a standard deviation of 0.02; the two that write into the residual
    stream are scaled by 1/sqrt(2 layers), as GPT-2's are, so that depth doesn't widen it.
    """
    d, f, v, t, n = cfg.width, cfg.feedforward_width, cfg.vocabulary, cfg.context, cfg.layers
    shapes = {
        "tokens_vd": (v, d),
        "positions_td": (t, d),
        "l_qkv_d3d": (n, d, 3 * d),
        "l_out_dd": (n, d, d),
        "l_up_df": (n, d, f),
        "l_down_fd": (n, f, d),
    }
    if not cfg.tied:
        shapes["head_dv"] = (d, v)
    keys = dict(zip(sorted(shapes), jax.random.split(key, len(shapes)), strict=True))
    params = {
        name: INIT_STD * jax.random.normal(keys[name], shape) for name, shape in shapes.items()
    }
    for name in ("l_out_dd", "l_down_fd"):
        params[name] *= (2 * n) ** -0.5
    zeros = {"l_qkv_3d": (n, 3 * d), "l_out_d": (n, d), "l_up_f": (n, f), "l_down_d": (n, d)}
    params |= {name: jnp.zeros(shape) for name, shape in zeros.items()}
    for name, shape in {"l_norm1": (n, d), "l_norm2": (n, d), "norm": (d,)}.items():
        params |= {f"{name}_scale_d": jnp.ones(shape), f"{name}_bias_d": jnp.zeros(shape)}
    return params


def layer_norm(x_btd: jax.Array, scale_d: jax.Array, bias_d: jax.Array) -> jax.Array:
    """Normalize the last axis to mean 0 and variance 1 (Ba et al. 2016, arXiv:1607.06450)."""
    x_btd -= jnp.mean(x_btd, axis=-1, keepdims=True)
    variance_bt1 = jnp.mean(jnp.square(x_btd), axis=-1, keepdims=True)
    return x_btd * jax.lax.rsqrt(variance_bt1 + LAYER_NORM_EPSILON) * scale_d + bias_d


def causal_attention(q_bqhe: jax.Array, k_bkhe: jax.Array, v_bkhe: jax.Array) -> jax.Array:
    """Attend from each position to itself and those before it, scaled by 1/sqrt(e).

    Three arrays of shape (b, t, h, e) give one of the same shape (Vaswani et al. 2017,
    arXiv:1706.03762, section 3.2.1).
    """
    t, e = q_bqhe.shape[1], q_bqhe.shape[3]
    scores_bhqk = jnp.einsum("bqhe,bkhe->bhqk", q_bqhe * e**-0.5, k_bkhe)
    mask_qk = jnp.tril(jnp.ones((t, t), bool))
    weights_bhqk = jax.nn.softmax(jnp.where(mask_qk, scores_bhqk, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhe->bqhe", weights_bhqk, v_bkhe)


def block(layer: Params, x_btd: jax.Array, cfg: ModelConfig) -> jax.Array:
    """Add one layer's attention and feed-forward to the residual stream."""
    b, t, d = x_btd.shape
    y_btd = layer_norm(x_btd, layer["l_norm1_scale_d"], layer["l_norm1_bias_d"])
    qkv_bt3d = y_btd @ layer["l_qkv_d3d"] + layer["l_qkv_3d"]
    q, k, v = (
        a_btd.reshape(b, t, cfg.heads, d // cfg.heads) for a_btd in jnp.split(qkv_bt3d, 3, axis=-1)
    )
    y_btd = causal_attention(q, k, v).reshape(b, t, d)
    x_btd += y_btd @ layer["l_out_dd"] + layer["l_out_d"]
    y_btd = layer_norm(x_btd, layer["l_norm2_scale_d"], layer["l_norm2_bias_d"])
    y_btf = jax.nn.gelu(y_btd @ layer["l_up_df"] + layer["l_up_f"])
    return x_btd + y_btf @ layer["l_down_fd"] + layer["l_down_d"]


def logits(params: Params, tokens_bt: jax.Array, cfg: ModelConfig) -> jax.Array:
    """Score every next token: (b, t) integers below ``vocabulary`` to (b, t, v) float32.

    t may be shorter than the model's context, never longer.
    """
    t = tokens_bt.shape[1]
    onehot_btv = jax.nn.one_hot(tokens_bt, cfg.vocabulary, dtype=jnp.float32)
    x_btd = onehot_btv @ params["tokens_vd"] + params["positions_td"][:t]
    for i in range(cfg.layers):
        layer = {name: a[i] for name, a in params.items() if name.startswith("l_")}
        x_btd = block(layer, x_btd, cfg)
    x_btd = layer_norm(x_btd, params["norm_scale_d"], params["norm_bias_d"])
    head_dv = params["tokens_vd"].T if cfg.tied else params["head_dv"]
    return x_btd @ head_dv


def loss(params: Params, windows_bt: jax.Array, cfg: ModelConfig) -> jax.Array:
    """Mean cross-entropy in nats of each window's next tokens: (b, t + 1) integers to a scalar."""
    inputs_bt, targets_bt = windows_bt[:, :-1], windows_bt[:, 1:]
    logprobs_btv = jax.nn.log_softmax(logits(params, inputs_bt, cfg))
    onehot_btv = jax.nn.one_hot(targets_bt, cfg.vocabulary, dtype=jnp.float32)
    return -jnp.mean(jnp.sum(logprobs_btv * onehot_btv, axis=-1))


def is_matrix(name: str, array: jax.Array) -> bool:
    """Whether a parameter is a matrix in each layer that it belongs to, not a bias or a norm's."""
    return array.ndim - name.startswith("l_") >= 2
