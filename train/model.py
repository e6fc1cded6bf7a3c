"""A decoder-only transformer as pure functions over a dictionary of arrays.

Names end in their dimensions, one letter each::

    b  windows of a batch       t  positions of a window
    v  vocabulary, filled up    d  width of the residual stream
    h  heads                    g  heads of keys and values
    e  width of one head        p  queries, keys and values packed: (h + 2 g) e
    f  width of the feed-forward layer            l  layers, stacked into one array

The layout is GPT-2's: a norm before attention, before the feed-forward layer and at the end
(Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; pre-norm: Xiong et
al. 2020, arXiv:2002.04745). ModelConfig's options turn it into others; a parameter that an option
leaves out is not there.
"""

import jax
import jax.numpy as jnp

from train.attention import causal
from train.config import ComputeConfig, ModelConfig
from train.sharding import gathered

type Params = dict[str, jax.Array]
"""Arrays by name; the names of those that every layer has begin with ``l_`` and axis 0 is l."""

type Head = tuple[jax.Array, jax.Array | None]
"""The output layer: head_dv (d, v) and, where there is one, its bias head_v (v,)."""

INIT_STD = 0.02
NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0
ONE_HOT_VOCABULARY = 1024
"""Up to this size a product with one-hot rows beats a look-up, whose gradient is a scatter."""

BY_TOKEN = ("tokens_vd", "head_dv", "head_v")
"""Parameters that have an axis v."""

PLAIN = ComputeConfig()
"""How it is computed where nobody says."""


def init_params(key: jax.Array, cfg: ModelConfig) -> Params:
    """Draw fresh float32 parameters.

    Matrices are normal with a standard deviation of 0.02; the two that write into the residual
    stream are scaled by 1/sqrt(2 layers), as GPT-2's are, so that depth doesn't widen it. What
    fills the vocabulary up is zero, and stays so: no gradient reaches it.
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
    filler = cfg.padded_vocabulary - v
    params["tokens_vd"] = jnp.pad(params["tokens_vd"], ((0, filler), (0, 0)))
    if not cfg.tied:
        params["head_dv"] = jnp.pad(params["head_dv"], ((0, 0), (0, filler)))
    for name in params.keys() & {"l_out_dd", "l_down_fd"}:
        params[name] *= (2 * n) ** -0.5
    params |= {name: jnp.zeros(shape) for name, shape in biases.items()}
    for name, shape in norms.items():
        params[f"{name}_scale_d"] = jnp.ones(shape)
        if cfg.norm == "layer":
            params[f"{name}_bias_d"] = jnp.zeros(shape)
    return params


def norm(params: Params, name: str, x_btd: jax.Array, cfg: ModelConfig) -> jax.Array:
    """Normalize the last axis, in float32, by the norm of this name.

    ``layer``: to mean 0 and variance 1, then scale and bias (Ba et al. 2016, arXiv:1607.06450).
    ``rms``: to mean square 1, then scale (Zhang and Sennrich 2019, arXiv:1910.07467).
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
    """Multiply the last axis by a matrix, and add the bias if the model has it."""
    y = x @ params[matrix]
    return y + params[bias] if bias in params else y


def rotate(x_bthe: jax.Array) -> jax.Array:
    """Turn each head's pairs by angles that grow with the position (arXiv:2104.09864).

    Su et al. 2021, "RoFormer". A pair is one number of the first half of e and its like of the
    second, as in Llama; the i-th turns by t / 10000^(2i / e).
    """
    t, e = x_bthe.shape[1], x_bthe.shape[3]
    turns = ROTARY_BASE ** (-jnp.arange(0, e, 2) / e)
    angles_t1e = (jnp.arange(t)[:, None] * turns)[:, None]
    sin, cos = jnp.sin(angles_t1e), jnp.cos(angles_t1e)
    a, b = jnp.split(x_bthe.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(x_bthe.dtype)


def attention(layer: Params, x_btd: jax.Array, cfg: ModelConfig, how: ComputeConfig) -> jax.Array:
    """Let each position read from itself and those before it."""
    b, t, d = x_btd.shape
    h, g, e = cfg.heads, cfg.groups, cfg.head_width
    qkv_btp = linear(layer, "l_qkv_dp", "l_qkv_p", x_btd)
    packed = jnp.split(qkv_btp, [h * e, (h + g) * e], axis=-1)
    q_bthe, k_btge, v_btge = (a.reshape(b, t, -1, e) for a in packed)
    if cfg.positions == "rotary":
        q_bthe, k_btge = rotate(q_bthe), rotate(k_btge)
    y_btd = causal(q_bthe, k_btge, v_btge, how.attention).reshape(b, t, d)
    return linear(layer, "l_out_dd", "l_out_d", y_btd) if cfg.attention_output else y_btd


def feedforward(layer: Params, x_btd: jax.Array, cfg: ModelConfig) -> jax.Array:
    """Work on each position by itself; swiglu: Shazeer 2020, arXiv:2002.05202."""
    y_btf = linear(layer, "l_up_df", "l_up_f", x_btd)
    if cfg.activation == "swiglu":
        y_btf *= jax.nn.silu(x_btd @ layer["l_gate_df"])
    else:
        y_btf = {"gelu": jax.nn.gelu, "relu": jax.nn.relu}[cfg.activation](y_btf)
    return linear(layer, "l_down_fd", "l_down_d", y_btf)


def dropout(x: jax.Array, key: jax.Array | None, rate: float) -> jax.Array:
    """Leave out a share of the numbers and scale up the rest (arXiv:1207.0580); no key, none."""
    if key is None or not rate:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def block(
    layer: Params, x_btd: jax.Array, key: jax.Array | None, cfg: ModelConfig, how: ComputeConfig
) -> jax.Array:
    """Add one layer's attention and feed-forward to the residual stream."""
    keys = (None, None) if key is None else jax.random.split(key)
    y_btd = attention(layer, norm(layer, "l_norm1", x_btd, cfg), cfg, how)
    y_btd = x_btd + dropout(y_btd, keys[0], cfg.dropout)
    if cfg.feedforward_width:
        z_btd = feedforward(layer, norm(layer, "l_norm2", y_btd, cfg), cfg)
        y_btd += dropout(z_btd, keys[1], cfg.dropout)
    return x_btd + y_btd if cfg.double_residual else y_btd


def layers(
    params: Params, x_btd: jax.Array, key: jax.Array | None, cfg: ModelConfig, how: ComputeConfig
) -> jax.Array:
    """Go through all layers, scanned or unrolled, keeping for the gradient what ``remat`` says."""
    stacked = {name: a for name, a in params.items() if name.startswith("l_")}
    keys_l = None if key is None else jax.random.split(key, cfg.layers)

    def step(x_btd: jax.Array, here: tuple[Params, jax.Array | None]) -> tuple[jax.Array, None]:
        layer = {name: gathered(a) for name, a in here[0].items()}
        return block(layer, x_btd, here[1], cfg, how), None

    if how.remat != "none":
        dots = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        step = jax.checkpoint(step, policy=dots if how.remat == "dots" else None)
    if how.scan_layers:
        return jax.lax.scan(step, x_btd, (stacked, keys_l))[0]
    for i in range(cfg.layers):
        x_btd, _ = step(x_btd, jax.tree.map(lambda a, i=i: a[i], (stacked, keys_l)))
    return x_btd


def embed(tokens_vd: jax.Array, tokens_bt: jax.Array) -> jax.Array:
    """Take each token's row."""
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
    how: ComputeConfig = PLAIN,
    key: jax.Array | None = None,
) -> tuple[jax.Array, Head]:
    """Go through all layers and the last norm: (b, t) tokens to (b, t, d), and the output layer.

    t may be shorter than the model's context, never longer. With a key, dropout is drawn from it.
    """
    params = {name: a if "norm" in name else a.astype(how.dtype) for name, a in params.items()}
    params |= {name: gathered(a) for name, a in params.items() if not name.startswith("l_")}
    keys = (None, None) if key is None else jax.random.split(key)
    x_btd = embed(params["tokens_vd"], tokens_bt)
    if cfg.positions == "learned":
        x_btd += params["positions_td"][: tokens_bt.shape[1]]
    x_btd = layers(params, dropout(x_btd, keys[0], cfg.dropout), keys[1], cfg, how)
    head_dv = params["tokens_vd"].T if cfg.tied else params["head_dv"]
    return norm(params, "norm", x_btd, cfg), (head_dv, params.get("head_v"))


def scores(x_btd: jax.Array, head: Head, cfg: ModelConfig) -> jax.Array:
    """Score every next token in float32: (b, t, d) to (b, t, v), the filled-up ones at -inf."""
    head_dv, head_v = head
    logits_btv = jnp.matmul(x_btd, head_dv, preferred_element_type=jnp.float32)
    if head_v is not None:
        logits_btv += head_v
    if cfg.padded_vocabulary > cfg.vocabulary:
        real_v = jnp.arange(cfg.padded_vocabulary) < cfg.vocabulary
        logits_btv = jnp.where(real_v, logits_btv, -jnp.inf)
    return logits_btv


def logits(
    params: Params,
    tokens_bt: jax.Array,
    cfg: ModelConfig,
    how: ComputeConfig = PLAIN,
    key: jax.Array | None = None,
) -> jax.Array:
    """Score every next token: (b, t) integers below ``vocabulary`` to (b, t, v) float32.

    v is ``vocabulary``, without what fills it up; t and key are those of ``hidden``.
    """
    return scores(*hidden(params, tokens_bt, cfg, how, key), cfg)[..., : cfg.vocabulary]


def loss(
    params: Params,
    windows_bt: jax.Array,
    cfg: ModelConfig,
    how: ComputeConfig = PLAIN,
    key: jax.Array | None = None,
) -> jax.Array:
    """Mean cross-entropy in nats of each window's next tokens: (b, t + 1) integers to a scalar.

    Where ``loss_parts`` is n, no more than 1/n of the scores are there at once: they are made
    part by part along t, and again for the gradient.
    """
    x_btd, head = hidden(params, windows_bt[:, :-1], cfg, how, key)
    targets_bt = windows_bt[:, 1:]
    if how.loss_parts == 1:
        return jnp.mean(cross_entropy(x_btd, head, targets_bt, cfg))

    @jax.checkpoint
    def add(total: jax.Array, here: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        x_bsd, targets_bs = here
        return total + jnp.sum(cross_entropy(x_bsd, head, targets_bs, cfg)), None

    parts = tuple(_by_parts(a, how.loss_parts) for a in (x_btd, targets_bt))
    return jax.lax.scan(add, jnp.zeros(()), parts)[0] / targets_bt.size


def cross_entropy(
    x_btd: jax.Array, head: Head, targets_bt: jax.Array, cfg: ModelConfig
) -> jax.Array:
    """Give the surprise at each target in nats, float32 (b, t)."""
    logits_btv = scores(x_btd, head, cfg)
    hit_btv = targets_bt[..., None] == jnp.arange(cfg.padded_vocabulary)
    target_bt = jnp.sum(jnp.where(hit_btv, logits_btv, 0), axis=-1)
    return jax.nn.logsumexp(logits_btv, axis=-1) - target_bt


def _by_parts(a_bt: jax.Array, parts: int) -> jax.Array:
    """Cut axis 1 into parts, and put them first: (b, t, ...) to (parts, b, t / parts, ...)."""
    b, t, *rest = a_bt.shape
    return a_bt.reshape(b, parts, t // parts, *rest).swapaxes(0, 1)


def is_matrix(name: str, array: jax.Array) -> bool:
    """Whether a parameter is a matrix in each layer that it belongs to, not a bias or a norm's."""
    return array.ndim - name.startswith("l_") >= 2


def count(cfg: ModelConfig) -> int:
    """Count the parameters of a model, without making it or counting what fills it up."""
    real = jax.eval_shape(lambda: init_params(jax.random.key(0), cfg))
    filler = cfg.padded_vocabulary - cfg.vocabulary
    rows = sum(filler * a.size // cfg.padded_vocabulary for n, a in real.items() if n in BY_TOKEN)
    return sum(a.size for a in real.values()) - rows
