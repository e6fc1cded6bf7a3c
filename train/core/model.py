"""A decoder-only transformer as pure functions over a dictionary of arrays.

Names of arrays end in their dimensions, one letter each::

    b  sequences of a batch     t  positions of a sequence
    v  vocabulary, padded       d  width of the residual stream
    h  query heads              g  key and value heads
    e  width of one head        f  width of the feed-forward layer
    l  layers, stacked into one array             s  positions of one chunk of a sequence

The default layout is GPT-2's: a norm before attention, before the feed-forward layer and at the
end (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; pre-norm: Xiong et
al. 2020, arXiv:2002.04745). ModelConfig selects other layouts. The dictionary contains only the
parameters that the config needs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from train.core.attention import causal, platform
from train.core.config import ComputeConfig, Config, ModelConfig, RotaryConfig
from train.core.output import Head, cross_entropy
from train.core.sharding import local_copy, spread

type Params = dict[str, jax.Array]
"""Parameters by name. Names of per-layer parameters begin with ``l_``; axis 0 is the layer."""

INIT_STD = 0.02
ONE_HOT_VOCABULARY = 1024
"""Largest vocabulary for which a one-hot matmul is faster than a lookup, whose gradient is slow."""

SAVED = ("qkv", "attention", "middle", "feedforward")
"""Names of the arrays that a layer's forward pass saves for its backward pass (``remat: dots``)."""


class Packed(NamedTuple):
    """Documents and positions of the tokens of packed sequences, as integers (b, t)."""

    segments_bt: jax.Array
    """Number of the document of each position, from 1 on; 0 is padding."""
    positions_bt: jax.Array
    """Position of each token in its document."""


def init_params(key: jax.Array, cfg: ModelConfig) -> Params:
    """Return random initial parameters in float32.

    Matrices are drawn from a normal distribution with standard deviation 0.02. The two matrices of
    each layer that write to the residual stream are scaled by 1/sqrt(2 layers), as in GPT-2, so
    that the variance of the stream does not grow with depth. The padding of the vocabulary is zero
    and stays zero, because it gets no gradient.
    """
    d, f, v, t, n = cfg.width, cfg.feedforward_width, cfg.vocabulary, cfg.context, cfg.layers
    h, g, e = cfg.heads, cfg.groups, cfg.head_width
    shapes = {"tokens_vd": (v, d)}
    shapes |= {"l_q_dhe": (n, d, h, e), "l_k_dge": (n, d, g, e), "l_v_dge": (n, d, g, e)}
    biases, norms = {}, {"l_norm1_scale_d": (n, d), "norm_scale_d": (d,)}
    if cfg.positions == "learned":
        shapes["positions_td"] = (t, d)
    if cfg.attention_output:
        shapes["l_out_hed"] = (n, h, e, d)
    if f:
        shapes |= {"l_up_df": (n, d, f), "l_down_fd": (n, f, d)}
        norms["l_norm2_scale_d"] = (n, d)
    if cfg.qk_norm:
        norms |= {"l_q_norm_scale_e": (n, e), "l_k_norm_scale_e": (n, e)}
    if f and cfg.activation == "swiglu":
        shapes["l_gate_df"] = (n, d, f)
    if not cfg.tied:
        shapes["head_dv"] = (d, v)
    if cfg.attention_bias:
        biases |= {"l_q_he": (n, h, e), "l_k_ge": (n, g, e), "l_v_ge": (n, g, e)}
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
    for name in sorted(params.keys() & {"l_out_hed", "l_down_fd"}):
        params[name] *= (2 * n) ** -0.5
    if cfg.norm == "layer":
        biases |= {name.replace("scale", "bias"): shape for name, shape in norms.items()}
    params |= {name: jnp.zeros(shape) for name, shape in biases.items()}
    return params | {name: jnp.ones(shape) for name, shape in norms.items()}


def norm(params: Params, name: str, x: jax.Array, cfg: ModelConfig) -> jax.Array:
    """Normalize the last axis (d or e) in float32, with the scale ``name`` and its bias, if any.

    ``norm: layer``: mean 0 and variance 1, then scale and bias (Ba et al. 2016, arXiv:1607.06450).
    ``norm: rms``: mean square 1, then scale (Zhang and Sennrich 2019, arXiv:1910.07467).
    """
    y = x.astype(jnp.float32)
    if cfg.norm == "layer":
        y -= jnp.mean(y, axis=-1, keepdims=True)
    y *= jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + cfg.norm_epsilon)
    y *= spread(params[name], y)
    if cfg.norm == "layer":
        y += spread(params[name.replace("scale", "bias")], y)
    return y.astype(x.dtype)


def linear(layer: Params, name: str, x: jax.Array) -> jax.Array:
    """Multiply by the matrix ``name`` and add the bias, if the model has one.

    The suffix of the name lists the axes: ``l_q_dhe`` maps (b, t, d) to (b, t, h, e), and its bias
    is ``l_q_he``.
    """
    inputs, outputs = matrix_axes(name)
    y = jnp.einsum(f"bt{inputs},{inputs}{outputs}->bt{outputs}", x, layer[name])
    bias = f"{name.rpartition('_')[0]}_{outputs}"
    return y + spread(layer[bias], y) if bias in layer else y


def rotate(
    x_bthe: jax.Array, cfg: RotaryConfig, positions_bt: jax.Array | None = None
) -> jax.Array:
    """Apply rotary position embeddings (Su et al. 2021, "RoFormer", arXiv:2104.09864).

    As in Llama, the i-th numbers of the first and the second half of axis e form a pair. At
    position t, a pair is rotated by the angle t times the pair's frequency. ``positions_bt``, if
    given, are used instead of the positions in the sequence.
    """
    t, e = x_bthe.shape[1], x_bthe.shape[3]
    positions = jnp.arange(t) if positions_bt is None else positions_bt
    angles_t1e = (positions[..., None] * frequencies(e, cfg))[..., None, :]
    sin_t1e = jnp.concatenate([-jnp.sin(angles_t1e), jnp.sin(angles_t1e)], axis=-1)
    cos_t1e = jnp.tile(jnp.cos(angles_t1e), 2)
    return (x_bthe * cos_t1e + swap_halves(x_bthe) * sin_t1e).astype(x_bthe.dtype)


def frequencies(width: int, cfg: RotaryConfig) -> jax.Array:
    """Return the frequencies by which ``rotate`` rotates the pairs of a head: float32 (width / 2,).

    Pair i has the frequency theta^(-2i / width) in radians per position; ``width`` is that of a
    head. A ``factor`` above 1 reduces the lowest frequencies (see RotaryConfig).
    """
    frequencies_e = cfg.theta ** (-jnp.arange(0, width, 2) / width)
    if cfg.factor == 1:
        return frequencies_e
    low, high = cfg.low_frequency_factor, cfg.high_frequency_factor
    periods_e = cfg.original_context / (2 * jnp.pi) * frequencies_e
    unscaled_e = jnp.clip((periods_e - low) / (high - low), 0, 1)
    return (unscaled_e + (1 - unscaled_e) / cfg.factor) * frequencies_e


def swap_halves(x_bthe: jax.Array) -> jax.Array:
    """Swap the first and the second half of the last axis.

    On a TPU, this is a matmul with a permutation matrix, which XLA fuses with the operations around
    it. Other ways to move numbers across lanes write all of them to memory and read them again.
    """
    e = x_bthe.shape[-1]
    if platform() != "tpu":
        return jnp.roll(x_bthe, e // 2, axis=-1)
    swap_ee = jnp.roll(jnp.eye(e, dtype=x_bthe.dtype), e // 2, axis=0)
    return jnp.matmul(x_bthe, swap_ee, precision="highest", preferred_element_type=jnp.float32)


def attention(layer: Params, x_btd: jax.Array, cfg: Config, packed: Packed | None) -> jax.Array:
    """Compute causal self-attention: (b, t, d) to (b, t, d)."""
    model, matrices = cfg.model, ("l_q_dhe", "l_k_dge", "l_v_dge")
    q_bthe, k_btge, v_btge = (linear(layer, name, x_btd) for name in matrices)
    if model.qk_norm:
        q_bthe = norm(layer, "l_q_norm_scale_e", q_bthe, model)
        k_btge = norm(layer, "l_k_norm_scale_e", k_btge, model)
    if model.positions == "rotary":
        rotary = (model.rotary, packed and packed.positions_bt)
        q_bthe, k_btge = rotate(q_bthe, *rotary), rotate(k_btge, *rotary)
    q_bthe *= model.head_width**-0.5
    q_bthe, k_btge, v_btge = (checkpoint_name(a, "qkv") for a in (q_bthe, k_btge, v_btge))
    y_bthe = causal(q_bthe, k_btge, v_btge, cfg.compute.attention, packed and packed.segments_bt)
    if not model.attention_output:
        return y_bthe.reshape(x_btd.shape)
    return linear(layer, "l_out_hed", y_bthe)


def feedforward(layer: Params, x_btd: jax.Array, cfg: ModelConfig) -> jax.Array:
    """Compute the feed-forward layer per position (SwiGLU: Shazeer 2020, arXiv:2002.05202)."""
    y_btf = checkpoint_name(linear(layer, "l_up_df", x_btd), "feedforward")
    if cfg.activation == "swiglu":
        gate_btf = checkpoint_name(linear(layer, "l_gate_df", x_btd), "feedforward")
        y_btf *= jax.nn.silu(gate_btf)
    else:
        y_btf = {"gelu": jax.nn.gelu, "relu": jax.nn.relu}[cfg.activation](y_btf)
    return linear(layer, "l_down_fd", y_btf)


def dropout(x: jax.Array, key: jax.Array | None, rate: float) -> jax.Array:
    """Apply dropout (Hinton et al. 2012, arXiv:1207.0580); without a key, return ``x``."""
    if key is None or not rate:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def block(
    layer: Params, x_btd: jax.Array, key: jax.Array | None, cfg: Config, packed: Packed | None
) -> jax.Array:
    """Compute one layer: add attention and feed-forward to the residual stream."""
    model = cfg.model
    keys = (None, None) if key is None else jax.random.split(key)
    y_btd = attention(layer, norm(layer, "l_norm1_scale_d", x_btd, model), cfg, packed)
    y_btd = checkpoint_name(x_btd + dropout(y_btd, keys[0], model.dropout), "middle")
    if model.feedforward_width:
        z_btd = feedforward(layer, norm(layer, "l_norm2_scale_d", y_btd, model), model)
        y_btd += dropout(z_btd, keys[1], model.dropout)
    return x_btd + y_btd if model.double_residual else y_btd


def layers(
    params: Params, x_btd: jax.Array, key: jax.Array | None, cfg: Config, packed: Packed | None
) -> jax.Array:
    """Apply all layers, scanned or unrolled, with the rematerialization that ``remat`` selects."""
    stacked = {name: a for name, a in params.items() if name.startswith("l_")}
    keys_l = None if key is None else jax.random.split(key, cfg.model.layers)

    def step(x_btd: jax.Array, inputs: tuple[Params, jax.Array | None]) -> tuple[jax.Array, None]:
        layer = {name: local_copy(a) for name, a in inputs[0].items()}
        return block(layer, x_btd, inputs[1], cfg, packed), None

    if cfg.compute.remat != "none":
        dots = jax.checkpoint_policies.save_only_these_names(*SAVED)
        step = jax.checkpoint(step, policy=dots if cfg.compute.remat == "dots" else None)
    if cfg.compute.scan_layers:
        return jax.lax.scan(step, x_btd, (stacked, keys_l))[0]
    unstacked = {name: unstack(a) for name, a in stacked.items()}
    for i in range(cfg.model.layers):
        layer = {name: arrays[i] for name, arrays in unstacked.items()}
        x_btd, _ = step(x_btd, (layer, None if keys_l is None else keys_l[i]))
    return x_btd


def unstack(stacked: jax.Array) -> list[jax.Array]:
    """Return the layers of a stacked array, each as an array.

    On TPUs, this indexes the array, because XLA then adds up the layers' gradients in place. On
    other platforms, it splits the array; the gradient is then a concatenation
    (docs/decisions/0025).
    """
    n = stacked.shape[0]
    if platform() == "tpu":
        return [stacked[i] for i in range(n)]
    return [layer[0] for layer in jax.lax.split(stacked, [1] * n)]


def embed(tokens_vd: jax.Array, tokens_bt: jax.Array) -> jax.Array:
    """Look up token embeddings: (b, t) to (b, t, d).

    Vocabularies up to ONE_HOT_VOCABULARY use a matmul, larger ones a lookup. The gradient of a
    lookup adds up all occurrences of a token one by one, so it is computed in float32: in bfloat16,
    each addition would be rounded.
    """
    v = tokens_vd.shape[0]
    if v <= ONE_HOT_VOCABULARY:
        return jax.nn.one_hot(tokens_bt, v, dtype=tokens_vd.dtype) @ tokens_vd
    sharding = jax.typeof(tokens_bt).sharding
    out = None if sharding.mesh.empty else jax.P(*sharding.spec, None)
    x_btd = tokens_vd.astype(jnp.float32).at[tokens_bt].get(out_sharding=out)
    return x_btd.astype(tokens_vd.dtype)


def in_compute_type(params: Params, compute: ComputeConfig) -> Params:
    """Return the parameters in the type ``compute.dtype``; those of norms stay float32."""
    return {name: a if "norm" in name else a.astype(compute.dtype) for name, a in params.items()}


def hidden(
    params: Params,
    tokens_bt: jax.Array,
    cfg: Config,
    key: jax.Array | None = None,
    packed: Packed | None = None,
) -> tuple[jax.Array, Head]:
    """Apply embedding, layers and final norm to (b, t) tokens.

    Returns the hidden states (b, t, d) and the output layer. t is at most the model's context.
    Dropout is drawn from ``key``; without a key, there is no dropout.
    """
    model, params = cfg.model, in_compute_type(params, cfg.compute)
    params |= {name: local_copy(a) for name, a in params.items() if not name.startswith("l_")}
    keys = (None, None) if key is None else jax.random.split(key)
    x_btd = embed(params["tokens_vd"], tokens_bt)
    if model.positions == "learned" and packed:
        x_btd += embed(params["positions_td"], packed.positions_bt)
    elif model.positions == "learned":
        x_btd += spread(params["positions_td"][: tokens_bt.shape[1]], x_btd)
    x_btd = layers(params, dropout(x_btd, keys[0], model.dropout), keys[1], cfg, packed)
    head_dv = params["tokens_vd"].T if model.tied else params["head_dv"]
    return norm(params, "norm_scale_d", x_btd, model), (head_dv, params.get("head_v"))


def loss(
    params: Params,
    sequences: jax.Array,
    cfg: Config,
    key: jax.Array | None,
    count: jax.Array | float,
) -> jax.Array:
    """Return the sum of the next-token cross-entropy in nats, divided by ``count``, as a scalar.

    ``sequences`` are tokens (b, t + 1), or packed documents (b, 4, t + 1). The four rows of packed
    documents are tokens, segments and positions (see Packed), and a mask: 1 for each token that
    counts in the loss, otherwise 0.
    """
    if sequences.ndim == 2:
        tokens_bt, packed, learned_bt = sequences, None, jnp.ones_like(sequences)
    else:
        tokens_bt, segments_bt, positions_bt, learned_bt = sequences.swapaxes(0, 1)
        packed = Packed(segments_bt[:, :-1], positions_bt[:, :-1])
    x_btd, head = hidden(params, tokens_bt[:, :-1], cfg, key, packed)
    weights_bt = learned_bt[:, 1:] / count
    return cross_entropy(x_btd, head, tokens_bt[:, 1:], weights_bt, cfg)


def learned_tokens(microbatches: jax.Array) -> jax.Array | int:
    """Return how many tokens of several microbatches count in the loss; 1 if none does.

    ``microbatches`` are the ``sequences`` of several calls of ``loss``, stacked along axis 0.
    """
    if microbatches.ndim == 3:
        return microbatches[..., 1:].size
    return jnp.maximum(jnp.sum(microbatches[..., 3, :]), 1)


def matrix_axes(name: str) -> tuple[str, str] | None:
    """Return the letters of a matrix's input and output axes; None for a bias or a scale.

    ``l_q_dhe`` gives ("d", "he") and ``l_out_hed`` gives ("he", "d"). In adapters (lora.py), r is
    the rank: ``l_q_dhe.in`` gives ("d", "r") and ``l_q_dhe.out`` gives ("r", "he").
    """
    matrix, _, side = name.partition(".")
    axes = matrix.rpartition("_")[2]
    if axes == "d" or "d" not in axes:
        return None
    inputs = axes[:-1] if axes[-1] == "d" else axes[0]
    outputs = axes.removeprefix(inputs)
    return ("r" if side == "out" else inputs), ("r" if side == "in" else outputs)


def is_layer_matrix(name: str) -> bool:
    """Return whether a parameter consists of one matrix per layer."""
    return name.startswith("l_") and matrix_axes(name) is not None
