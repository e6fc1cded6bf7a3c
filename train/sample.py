"""Text generation, token by token."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from train import lora
from train.config import Config, ModelConfig
from train.model import Params, logits
from train.tokens import Tokenizer


def generate(params: Params, cfg: Config, tokenizer: Tokenizer) -> str:
    """Return the prompt followed by ``sample.length`` generated tokens, as text.

    If ``params`` are sharded over several processes, all must call this, and all get the text.
    """
    prompt = tokenizer.encode(cfg.sample.prompt).astype(np.int32)
    window_t = np.zeros(cfg.model.context, np.int32)
    recent = prompt[-cfg.model.context :]
    window_t[: len(recent)] = recent
    tokens = complete(
        lora.merge(params, cfg),
        window_t,
        len(recent),
        jax.random.key(cfg.seed),
        cfg.sample.temperature,
        cfg.model,
        cfg.sample.length,
    )
    return tokenizer.decode(np.concatenate([prompt, np.asarray(tokens)]))


@partial(jax.jit, static_argnums=(5, 6))
def complete(
    params: Params,
    window_t: jax.Array,
    filled: int,
    key: jax.Array,
    temperature: float,
    cfg: ModelConfig,
    length: int,
) -> jax.Array:
    """Return ``length`` tokens that follow the first ``filled`` tokens of ``window_t`` (context,).

    A full window drops its oldest token for each new one. Temperature 0 selects the most likely
    token.
    """

    def draw(carry: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple, jax.Array]:
        window_t, filled = carry
        logits_v = logits(params, window_t[None], cfg)[0, filled - 1]
        drawn = jax.random.categorical(key, logits_v / jnp.maximum(temperature, 1e-6))
        token = jnp.where(temperature > 0, drawn, jnp.argmax(logits_v)).astype(jnp.int32)
        full = filled == cfg.context
        window_t = jnp.where(full, jnp.roll(window_t, -1), window_t)
        position = jnp.where(full, cfg.context - 1, filled)
        return (window_t.at[position].set(token), position + 1), token

    start = (window_t, jnp.asarray(filled, jnp.int32))
    return jax.lax.scan(draw, start, jax.random.split(key, length))[1]
