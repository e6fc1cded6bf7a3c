"""Compiled computations: the initial state, training steps, evaluation.

Batches are one array (n, a, b, t + 1) of tokens: n steps of one call, a microbatches per step, b
sequences per microbatch (sharded over all devices), and t + 1 tokens per sequence. With packed
documents, they are (n, a, b, 4, t + 1), as ``model.loss`` describes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from train.core import lora, model, optimizer
from train.core.config import Config, microbatches
from train.core.data import Corpus
from train.core.sharding import BATCH_AXES, gradient_spec, local_copy, shard

type State = dict[str, Any]
"""``params`` (model.Params), ``opt_state`` (optax) and ``step`` (int32 scalar)."""

BATCH_SPEC = jax.P(None, None, BATCH_AXES)
"""Partition spec of a batch (n, a, b, t + 1)."""

DROPOUT_STREAM = 1
"""Number folded into the seed's random key, so that dropout uses other keys than parameters."""


def fresh_state(cfg: Config) -> State:
    """Return the state of step 0, drawn from the seed and sharded over the mesh, if any."""
    params = shard(lora.init_params(cfg))
    opt_state = optimizer.make(cfg).init(params)
    return {"params": params, "opt_state": opt_state, "step": jnp.zeros((), jnp.int32)}


def abstract_state(cfg: Config, mesh: jax.sharding.Mesh) -> State:
    """Return the shapes of a state that is sharded over the current ``mesh``."""

    def with_sharding(a: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = jax.NamedSharding(mesh, a.sharding.spec if a.sharding else jax.P())
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)

    return jax.tree.map(with_sharding, jax.eval_shape(partial(fresh_state, cfg)))


@partial(jax.jit, static_argnums=2, donate_argnums=0)
def update(
    state: State, sequences_nabt: jax.Array, cfg: Config
) -> tuple[State, dict[str, jax.Array]]:
    """Train n steps; ``state`` is donated.

    Returns the next state and the steps' loss, norms and learning rate, as replicated arrays (n,).
    """
    step = partial(_step, cfg=cfg)
    if sequences_nabt.shape[0] > 1:
        return jax.lax.scan(step, state, sequences_nabt)
    state, values = step(state, sequences_nabt[0])
    return state, {name: value[None] for name, value in values.items()}


def _step(
    state: State, sequences_abt: jax.Array, cfg: Config
) -> tuple[State, dict[str, jax.Array]]:
    loss, grads = _loss_and_grads(state["params"], sequences_abt, _dropout_key(state, cfg), cfg)
    updates, opt_state = optimizer.make(cfg).update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    values = {
        "loss": loss,
        "grad_norm": optax.tree.norm(grads),
        "param_norm": optax.tree.norm(params),
        "lr": optimizer.learning_rate(state["step"], cfg),
    }
    return {"params": params, "opt_state": opt_state, "step": state["step"] + 1}, values


def _loss_and_grads(
    params: model.Params, sequences_abt: jax.Array, key: jax.Array | None, cfg: Config
) -> tuple[jax.Array, model.Params]:
    """Return the mean loss and gradient of all microbatches; frozen parameters have gradient 0."""
    names = optimizer.trainable_names(params, cfg)
    trainable = {name: a for name, a in params.items() if name in names}
    frozen = {name: a for name, a in params.items() if name not in names}
    zero_grads = jax.tree.map(jnp.zeros_like, frozen)
    count = sequences_abt.shape[0]
    tokens = model.learned_tokens(sequences_abt) / count

    def weights(trainable: model.Params) -> tuple[model.Params, model.Params]:
        """Merge the adapters; return the parameters that training changes, and the others."""
        merged = lora.merge(frozen | trainable, cfg)
        if count > 1 and cfg.compute.sync == "step":
            merged = model.in_compute_type(merged, cfg.compute)
            merged = {name: local_copy(a) for name, a in merged.items()}
        changed = {lora.matrix(name) for name in names}
        learned = {name: a for name, a in merged.items() if name in changed}
        return learned, {name: a for name, a in merged.items() if name not in changed}

    learned, backward, others = jax.vjp(weights, trainable, has_aux=True)

    def microbatch(sequences_bt: jax.Array, i: jax.Array | int) -> tuple[jax.Array, model.Params]:
        own_key = None if key is None else jax.random.fold_in(key, i)

        def loss(learned: model.Params) -> jax.Array:
            return model.loss(others | learned, sequences_bt, cfg, own_key, tokens)

        return jax.value_and_grad(loss)(learned)

    def add(total: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, microbatch(*inputs)), None

    if count == 1:
        loss, grads = microbatch(sequences_abt[0], 0)
        return loss, backward(grads)[0] | zero_grads
    zeros = {n: jnp.zeros(a.shape, out_sharding=gradient_spec(a)) for n, a in learned.items()}
    inputs = (sequences_abt, jnp.arange(count))
    (loss, grads), _ = jax.lax.scan(add, (jnp.zeros(()), zeros), inputs)
    grads = {name: a.astype(learned[name].dtype) for name, a in grads.items()}
    grads = jax.tree.map(lambda a: a / count, backward(grads)[0])
    return loss / count, grads | zero_grads


def _dropout_key(state: State, cfg: Config) -> jax.Array | None:
    """Return the random key of a step, derived from seed and step; None without dropout."""
    if not cfg.model.dropout:
        return None
    stream = jax.random.fold_in(jax.random.key(cfg.seed), DROPOUT_STREAM)
    return jax.random.fold_in(stream, state["step"])


@partial(jax.jit, static_argnums=2)
def evaluate(params: model.Params, sequences_nabt: jax.Array, cfg: Config) -> jax.Array:
    """Return the mean loss of n batches, without dropout, as a scalar."""
    sequences_mbt = sequences_nabt.reshape(-1, *sequences_nabt.shape[2:])
    params = lora.merge(params, cfg)
    learned = model.learned_tokens(sequences_mbt) / len(sequences_mbt)

    def loss(sequences_bt: jax.Array) -> jax.Array:
        return model.loss(params, sequences_bt, cfg, None, learned)

    return jnp.mean(jax.lax.map(loss, sequences_mbt))


def training_batches(
    corpus: Corpus, first: int, last: int, cfg: Config, sharding: jax.NamedSharding
) -> jax.Array:
    """Return the batches of steps ``first`` to ``last`` - 1, as one global array.

    Each process reads only the rows of its own devices.
    """
    return _batches(lambda i, rows: corpus.rows(first + i, rows), last - first, cfg, sharding)


def heldout_batches(corpus: Corpus, cfg: Config, sharding: jax.NamedSharding) -> jax.Array:
    """Return the held-out batches that every evaluation of a run uses, as one global array."""
    n, b = cfg.evaluate.batches, cfg.batch
    return _batches(lambda i, rows: corpus.heldout_rows(n * b, i * b + rows), n, cfg, sharding)


def _batches(
    read: Callable[[int, np.ndarray], np.ndarray],
    batches: int,
    cfg: Config,
    sharding: jax.NamedSharding,
) -> jax.Array:
    """Return a global array of batches; ``read(i, rows)`` returns the ``rows`` of batch ``i``."""
    shape = batch_shape(cfg, batches, sharding.mesh.size)
    rows_ab = np.arange(cfg.batch).reshape(shape[1:3])

    def own_rows(index: tuple[slice, ...]) -> np.ndarray:
        own_ab = rows_ab[:, index[2]]
        own = np.stack([read(i, own_ab.ravel()) for i in range(batches)])
        return own.reshape(batches, *own_ab.shape, *shape[3:])

    return jax.make_array_from_callback(shape, sharding, own_rows)


def batch_shape(cfg: Config, steps: int, devices: int) -> tuple[int, ...]:
    """Return the shape of the batches of a call with this number of steps."""
    count = microbatches(cfg, devices)
    planes = (4,) if cfg.data.is_packed else ()
    return (steps, count, cfg.batch // count, *planes, cfg.model.context + 1)
