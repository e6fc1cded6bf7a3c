"""A decoder-only transformer as pure functions over a dictionary of arrays.

Names of arrays end in their dimensions, one letter each::

    b  sequences of a batch     t  positions of a sequence
    v  vocabulary, padded       d  width of the residual stream
    h  query heads              g  key and value heads
    e  width of one head        p  queries, keys and values packed: (h + 2 g) e
    f  width of the feed-forward layer            l  layers, stacked into one array
    s  positions of one chunk of a sequence

The default layout is GPT-2's: a norm before attention, before the feed-forward layer and at the
end (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; pre-norm: Xiong et
al. 2020, arXiv:2002.04745). ModelConfig selects other layouts. The dictionary contains only the
parameters that the config needs.
"""

import jax
import jax.numpy as jnp

from train.attention import causal
from train.config import ComputeConfig, ModelConfig
from train.sharding import gathered

type Params = dict[str, jax.Array]
"""Parameters by name. Names of per-layer parameters begin with ``l_``; their axis 0 is l."""

type Head = tuple[jax.Array, jax.Array | None]
"""The output layer: head_dv (d, v) and its bias head_v (v,), or None."""

INIT_STD = 0.02
NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0
ONE_HOT_VOCABULARY = 1024
"""Up to this vocabulary, a one-hot matmul is faster than a lookup, whose gradient is a scatter."""

BY_TOKEN = ("tokens_vd", "head_dv", "head_v")
"""Parameters with a vocabulary axis (v)."""

DEFAULT_COMPUTE = ComputeConfig()


def init_params(key: jax.Array, cfg: ModelConfig) -> Params:
    """Return random initial parameters in float32.

    Matrices are normal with a standard deviation of 0.02. The two of each layer that write to the
    residual stream are scaled by 1/sqrt(2 layers), as in GPT-2, so that the variance of the stream
    does not grow with depth. The padding of the vocabulary is zero and stays zero, because it gets
    no gradient.
    """
    d, f, v, t, n = cfg.width, cfg.feedforward_width, cfg.vocabulary, cfg.context, cfg.layers
    p = (cfg.heads + 2 * cfg.groups) * cfg.head_width
    shapes = {"tokens_vd": (v, d), "l_qkv_dp": (n, d, p)}
    biases, norms = {}, {"l_norm1": (n, d), "norm": (d,)}
    if cfg.positions == "learned":
        shapes["positions_td"] = (t, d)
    if cfg.attention_output:
        shapes["l_out_dd"] = (n, d, d)
    if f:
        shapes |= {"l_up_df": (n, d, f), "l_down_fd": (n, f, d)}
        norms["l_norm2"] = (n, d)
    if f and cfg.activation == "swiglu":
        shapes["l_gate_df"] = (n, d, f)
    if not cfg.tied:
        shapes["head_dv"] = (d, v)
    if cfg.attention_bias:
        biases["l_qkv_p"] = (n, p)
    if cfg.attention_bias and cfg.attention_output:
        biases["l_out_d"] = (n, d)
    if f and cfg.feedforward_bias:
        biases |= {"l_up_f": (n, f), "l_down_d": (n, d)}
    if cfg.head_bias:
        biases["head_v"] = (cfg.padded_vocabulary,)
    keys = dict(zip(sorted(shapes), jax.random.split(key, len(shapes)), strict=True))
    params = {
        name: INIT_STD * jax.random.normal(keys[name], shape) for name, shape in shapes.items()
    }
    padding = cfg.padded_vocabulary - v
    params["tokens_vd"] = jnp.pad(params["tokens_vd"], ((0, padding), (0, 0)))
    if not cfg.tied:
        params["head_dv"] = jnp.pad(params["head_dv"], ((0, 0), (0, padding)))
    for name in params.keys() & {"l_out_dd", "l_down_fd"}:
        params[name] *= (2 * n) ** -0.5
    params |= {name: jnp.zeros(shape) for name, shape in biases.items()}
    for name, shape in norms.items():
        params[f"{name}_scale_d"] = jnp.ones(shape)
        if cfg.norm == "layer":
            params[f"{name}_bias_d"] = jnp.zeros(shape)
    return params


def norm(params: Params, name: str, x_btd: jax.Array, cfg: ModelConfig) -> jax.Array:
    """Normalize the last axis in float32, with the parameters of the norm ``name``.

    ``layer``: mean 0 and variance 1, then scale and bias (Ba et al. 2016, arXiv:1607.06450).
    ``rms``: mean square 1, then scale (Zhang and Sennrich 2019, arXiv:1910.07467).
    """
    y_btd = x_btd.astype(jnp.float32)
    if cfg.norm == "layer":
        y_btd -= jnp.mean(y_btd, axis=-1, keepdims=True)
    y_btd *= jax.lax.rsqrt(jnp.mean(jnp.square(y_btd), axis=-1, keepdims=True) + NORM_EPSILON)
    y_btd *= params[f"{name}_scale_d"]
    if cfg.norm == "layer":
        y_btd += params[f"{name}_bias_d"]
    return y_btd.astype(x_btd.dtype)


def linear(params: Params, matrix: str, bias: str, x: jax.Array) -> jax.Array:
    """Multiply the last axis by a matrix and add the bias, if the model has one."""
    y = x @ params[matrix]
    return y + params[bias] if bias in params else y


def rotate(x_bthe: jax.Array) -> jax.Array:
    """Apply rotary position embeddings (Su et al. 2021, "RoFormer", arXiv:2104.09864).

    As in Llama, the i-th numbers of the first and the second half of axis e form a pair. At
    position t, the pair is rotated by the angle t / 10000^(2i / e).
    """
    t, e = x_bthe.shape[1], x_bthe.shape[3]
    frequencies_e = ROTARY_BASE ** (-jnp.arange(0, e, 2) / e)
    angles_t1e = (jnp.arange(t)[:, None] * frequencies_e)[:, None]
    sin, cos = jnp.sin(angles_t1e), jnp.cos(angles_t1e)
    a, b = jnp.split(x_bthe.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(x_bthe.dtype)


def attention(
    layer: Params, x_btd: jax.Array, cfg: ModelConfig, compute: ComputeConfig
) -> jax.Array:
    """Compute causal self-attention: (b, t, d) to (b, t, d)."""
    b, t, d = x_btd.shape
    h, g, e = cfg.heads, cfg.groups, cfg.head_width
    qkv_btp = linear(layer, "l_qkv_dp", "l_qkv_p", x_btd)
    packed = jnp.split(qkv_btp, [h * e, (h + g) * e], axis=-1)
    q_bthe, k_btge, v_btge = (a.reshape(b, t, -1, e) for a in packed)
    if cfg.positions == "rotary":
        q_bthe, k_btge = rotate(q_bthe), rotate(k_btge)
    y_btd = causal(q_bthe, k_btge, v_btge, compute.attention).reshape(b, t, d)
    return linear(layer, "l_out_dd", "l_out_d", y_btd) if cfg.attention_output else y_btd


def feedforward(layer: Params, x_btd: jax.Array, cfg: ModelConfig) -> jax.Array:
    """Compute the feed-forward layer per position (SwiGLU: Shazeer 2020, arXiv:2002.05202)."""
    y_btf = linear(layer, "l_up_df", "l_up_f", x_btd)
    if cfg.activation == "swiglu":
        y_btf *= jax.nn.silu(x_btd @ layer["l_gate_df"])
    else:
        y_btf = {"gelu": jax.nn.gelu, "relu": jax.nn.relu}[cfg.activation](y_btf)
    return linear(layer, "l_down_fd", "l_down_d", y_btf)


def dropout(x: jax.Array, key: jax.Array | None, rate: float) -> jax.Array:
    """Apply dropout (Hinton et al. 2012, arXiv:1207.0580); without a key, return ``x``."""
    if key is None or not rate:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def block(
    layer: Params, x_btd: jax.Array, key: jax.Array | None, cfg: ModelConfig, compute: ComputeConfig
) -> jax.Array:
    """Compute one layer: add attention and feed-forward to the residual stream."""
    keys = (None, None) if key is None else jax.random.split(key)
    y_btd = attention(layer, norm(layer, "l_norm1", x_btd, cfg), cfg, compute)
    y_btd = x_btd + dropout(y_btd, keys[0], cfg.dropout)
    if cfg.feedforward_width:
        z_btd = feedforward(layer, norm(layer, "l_norm2", y_btd, cfg), cfg)
        y_btd += dropout(z_btd, keys[1], cfg.dropout)
    return x_btd + y_btd if cfg.double_residual else y_btd


def layers(
    params: Params,
    x_btd: jax.Array,
    key: jax.Array | None,
    cfg: ModelConfig,
    compute: ComputeConfig,
) -> jax.Array:
    """Apply all layers, scanned or unrolled, with the rematerialization that ``remat`` selects."""
    stacked = {name: a for name, a in params.items() if name.startswith("l_")}
    keys_l = None if key is None else jax.random.split(key, cfg.layers)

    def step(x_btd: jax.Array, inputs: tuple[Params, jax.Array | None]) -> tuple[jax.Array, None]:
        layer = {name: gathered(a) for name, a in inputs[0].items()}
        return block(layer, x_btd, inputs[1], cfg, compute), None

    if compute.remat != "none":
        dots = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        step = jax.checkpoint(step, policy=dots if compute.remat == "dots" else None)
    if compute.scan_layers:
        return jax.lax.scan(step, x_btd, (stacked, keys_l))[0]
    for i in range(cfg.layers):
        x_btd, _ = step(x_btd, jax.tree.map(lambda a, i=i: a[i], (stacked, keys_l)))
    return x_btd


def embed(tokens_vd: jax.Array, tokens_bt: jax.Array) -> jax.Array:
    """Look up token embeddings: (b, t) to (b, t, d)."""
    v = tokens_vd.shape[0]
    if v <= ONE_HOT_VOCABULARY:
        return jax.nn.one_hot(tokens_bt, v, dtype=tokens_vd.dtype) @ tokens_vd
    sharding = jax.typeof(tokens_bt).sharding
    out = None if sharding.mesh.empty else jax.P(*sharding.spec, None)
    return tokens_vd.at[tokens_bt].get(out_sharding=out)


def hidden(
    params: Params,
    tokens_bt: jax.Array,
    cfg: ModelConfig,
    compute: ComputeConfig = DEFAULT_COMPUTE,
    key: jax.Array | None = None,
) -> tuple[jax.Array, Head]:
    """Apply embedding, layers and final norm to (b, t) tokens.

    Returns the hidden states (b, t, d) and the output layer. t is at most the model's context.
    Dropout is drawn from ``key``; without a key, there is no dropout.
    """
    params = {name: a if "norm" in name else a.astype(compute.dtype) for name, a in params.items()}
    params |= {name: gathered(a) for name, a in params.items() if not name.startswith("l_")}
    keys = (None, None) if key is None else jax.random.split(key)
    x_btd = embed(params["tokens_vd"], tokens_bt)
    if cfg.positions == "learned":
        x_btd += params["positions_td"][: tokens_bt.shape[1]]
    x_btd = layers(params, dropout(x_btd, keys[0], cfg.dropout), keys[1], cfg, compute)
    head_dv = params["tokens_vd"].T if cfg.tied else params["head_dv"]
    return norm(params, "norm", x_btd, cfg), (head_dv, params.get("head_v"))


def padded_logits(x_btd: jax.Array, head: Head, cfg: ModelConfig) -> jax.Array:
    """Compute next-token logits in float32: (b, t, d) to (b, t, v), with -inf for the padding."""
    head_dv, head_v = head
    logits_btv = jnp.matmul(x_btd, head_dv, preferred_element_type=jnp.float32)
    if head_v is not None:
        logits_btv += head_v
    if cfg.padded_vocabulary > cfg.vocabulary:
        is_token_v = jnp.arange(cfg.padded_vocabulary) < cfg.vocabulary
        logits_btv = jnp.where(is_token_v, logits_btv, -jnp.inf)
    return logits_btv


def logits(
    params: Params,
    tokens_bt: jax.Array,
    cfg: ModelConfig,
    compute: ComputeConfig = DEFAULT_COMPUTE,
    key: jax.Array | None = None,
) -> jax.Array:
    """Compute next-token logits: (b, t) integers below ``vocabulary`` to (b, t, v) float32.

    v is ``vocabulary``, without padding. See ``hidden`` for t and ``key``.
    """
    return padded_logits(*hidden(params, tokens_bt, cfg, compute, key), cfg)[..., : cfg.vocabulary]


def loss(
    params: Params,
    sequences_bt: jax.Array,
    cfg: ModelConfig,
    compute: ComputeConfig = DEFAULT_COMPUTE,
    key: jax.Array | None = None,
) -> jax.Array:
    """Return the mean next-token cross-entropy in nats: (b, t + 1) integers to a scalar.

    With n ``loss_chunks``, only 1/n of the logits is in memory at a time: they are computed chunk
    by chunk along t, and recomputed for the gradient.
    """
    x_btd, head = hidden(params, sequences_bt[:, :-1], cfg, compute, key)
    targets_bt = sequences_bt[:, 1:]
    if compute.loss_chunks == 1:
        return jnp.mean(cross_entropy(x_btd, head, targets_bt, cfg))

    @jax.checkpoint
    def add(total: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        x_bsd, targets_bs = chunk
        return total + jnp.sum(cross_entropy(x_bsd, head, targets_bs, cfg)), None

    chunks = tuple(_split_into_chunks(a, compute.loss_chunks) for a in (x_btd, targets_bt))
    return jax.lax.scan(add, jnp.zeros(()), chunks)[0] / targets_bt.size


def cross_entropy(
    x_btd: jax.Array, head: Head, targets_bt: jax.Array, cfg: ModelConfig
) -> jax.Array:
    """Return the cross-entropy of each target in nats, float32 (b, t)."""
    logits_btv = padded_logits(x_btd, head, cfg)
    is_target_btv = targets_bt[..., None] == jnp.arange(cfg.padded_vocabulary)
    target_bt = jnp.sum(jnp.where(is_target_btv, logits_btv, 0), axis=-1)
    return jax.nn.logsumexp(logits_btv, axis=-1) - target_bt


def _split_into_chunks(a_bt: jax.Array, chunks: int) -> jax.Array:
    """Split axis 1 and move the chunks first: (b, t, ...) to (chunks, b, t / chunks, ...)."""
    b, t, *rest = a_bt.shape
    return a_bt.reshape(b, chunks, t // chunks, *rest).swapaxes(0, 1)


def is_matrix(name: str, array: jax.Array) -> bool:
    """Return whether a parameter is a matrix or a stack of matrices, not a bias or scale."""
    return array.ndim - name.startswith("l_") >= 2


def count(cfg: ModelConfig) -> int:
    """Return the number of parameters of a model, without padding; allocates no parameters."""
    shapes = jax.eval_shape(lambda: init_params(jax.random.key(0), cfg))
    rows = cfg.padded_vocabulary - cfg.vocabulary
    padding = sum(
        rows * a.size // cfg.padded_vocabulary for n, a in shapes.items() if n in BY_TOKEN
    )
    return sum(a.size for a in shapes.values()) - padding
