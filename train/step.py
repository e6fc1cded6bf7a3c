"""What the device does: the state of step 0, some steps of training, an evaluation.

Windows come as one array (n, a, b, t + 1): n steps that the device takes by itself, a parts of
each step's batch, b windows of a part, shared by all devices of the mesh, and their tokens.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from train import lora, model, optimizer
from train.config import Config
from train.data import Corpus
from train.sharding import BATCH, spread

type State = dict[str, Any]
"""``params`` (model.Params), ``opt_state`` (optax's) and ``step`` (int32 scalar)."""

SPLIT = jax.P(None, None, BATCH)
"""How windows are shared by the devices."""

DROPOUT_STREAM = 1
"""Sets the keys of dropout apart from those of the first parameters and of the passages."""


def fresh_state(cfg: Config) -> State:
    """Make the state of step 0, drawn from the seed alone and spread over the mesh, if any."""
    params = spread(lora.with_adapters(model.init_params(jax.random.key(cfg.seed), cfg.model), cfg))
    opt_state = optimizer.make(cfg).init(params)
    return {"params": params, "opt_state": opt_state, "step": jnp.zeros((), jnp.int32)}


@partial(jax.jit, static_argnums=2, donate_argnums=0)
def update(
    state: State, windows_nabt: jax.Array, cfg: Config
) -> tuple[State, dict[str, jax.Array]]:
    """Learn n steps from their batches.

    Gives the next state and, for each step, the scalars of Metrics: arrays (n,), the same
    everywhere.
    """
    step = partial(_step, cfg=cfg)
    if windows_nabt.shape[0] > 1:
        return jax.lax.scan(step, state, windows_nabt)
    state, values = step(state, windows_nabt[0])
    return state, {name: value[None] for name, value in values.items()}


def _step(state: State, windows_abt: jax.Array, cfg: Config) -> tuple[State, dict[str, jax.Array]]:
    loss, grads = _loss_and_grads(state["params"], windows_abt, _dropout_key(state, cfg), cfg)
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
    params: model.Params, windows_abt: jax.Array, key: jax.Array | None, cfg: Config
) -> tuple[jax.Array, model.Params]:
    """Mean loss and gradient over all parts, summed in float32; zero for what doesn't learn."""
    names = optimizer.learning(params, cfg)
    learning = {name: a for name, a in params.items() if name in names}
    still = {name: a for name, a in params.items() if name not in names}

    def of_learning(learning: model.Params, *others: Any) -> jax.Array:
        return model.loss(lora.merged(still | learning, cfg), *others)

    def part(windows_bt: jax.Array, i: jax.Array | int) -> tuple[jax.Array, model.Params]:
        own_key = None if key is None else jax.random.fold_in(key, i)
        how = cfg.compute
        return jax.value_and_grad(of_learning)(learning, windows_bt, cfg.model, how, own_key)

    parts = windows_abt.shape[0]
    nothing = jax.tree.map(jnp.zeros_like, still)
    if parts == 1:
        loss, grads = part(windows_abt[0], 0)
        return loss, grads | nothing

    def add(total: Any, here: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, part(*here)), None

    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, learning))
    total, _ = jax.lax.scan(add, zero, (windows_abt, jnp.arange(parts)))
    loss, grads = jax.tree.map(lambda a: a / parts, total)
    return loss, grads | nothing


def _dropout_key(state: State, cfg: Config) -> jax.Array | None:
    """Derive the step's key from seed and step alone, as the batch is; none without dropout."""
    if not cfg.model.dropout:
        return None
    stream = jax.random.fold_in(jax.random.key(cfg.seed), DROPOUT_STREAM)
    return jax.random.fold_in(stream, state["step"])


@partial(jax.jit, static_argnums=2)
def evaluate(params: model.Params, windows_nabt: jax.Array, cfg: Config) -> jax.Array:
    """Mean loss of n batches, without dropout, as a scalar."""
    windows_mbt = windows_nabt.reshape(-1, *windows_nabt.shape[2:])
    params = lora.merged(params, cfg)
    losses = jax.lax.map(
        lambda windows_bt: model.loss(params, windows_bt, cfg.model, cfg.compute), windows_mbt
    )
    return jnp.mean(losses)


def training_windows(
    corpus: Corpus, first: int, last: int, cfg: Config, sharding: jax.sharding.Sharding
) -> jax.Array:
    """Make the batches of the steps from ``first`` up to, not including, ``last``.

    One array over all processes; each reads only its devices' rows.
    """
    return _windows(lambda i, rows: corpus.rows(first + i, rows), last - first, cfg, sharding)


def heldout_windows(corpus: Corpus, cfg: Config, sharding: jax.sharding.Sharding) -> jax.Array:
    """Make the batches that every evaluation of a run looks at."""
    n, b = cfg.evaluate.batches, cfg.batch

    def rows(i: int, within: slice) -> np.ndarray:
        start, stop, _ = within.indices(b)
        return corpus.heldout_rows(n * b, slice(i * b + start, i * b + stop))

    return _windows(rows, n, cfg, sharding)


def _windows(rows: Any, batches: int, cfg: Config, sharding: jax.sharding.Sharding) -> jax.Array:
    parts = cfg.compute.accumulate
    b = cfg.batch // parts
    shape = (batches, parts, b, cfg.model.context + 1)

    def local(index: tuple[slice, ...]) -> np.ndarray:
        start, stop, _ = index[2].indices(b)
        return np.stack(
            [
                np.stack([rows(i, slice(a * b + start, a * b + stop)) for a in range(parts)])
                for i in range(batches)
            ]
        )

    return jax.make_array_from_callback(shape, sharding, local)
