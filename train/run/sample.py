"""Text generation, token by token."""

import math
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from train.core import attention, lora
from train.core.config import Config
from train.core.model import Params, hidden
from train.core.output import padded_logits
from train.data.tokens import Tokenizer
from train.run.mesh import from_process_0

CALL_TOKENS = 16
"""Tokens generated per call of ``complete``; the time limit is checked between calls."""


def generate(
    params: Params, cfg: Config, tokenizer: Tokenizer, limit_seconds: float = math.inf
) -> str:
    """Return the prompt followed by ``sample.length`` generated tokens, as text.

    The model also sees the tokens that the tokenizer puts before a text. Generation ends early if
    it takes longer than ``limit_seconds``. The first CALL_TOKENS tokens do not count, because their
    time includes the compilation. If ``params`` are sharded over several processes, all must call
    this, and all get the text. Raises ConfigError if the devices do not support the configured
    attention.
    """
    attention.check(cfg)
    prompt = tokenizer.encode(cfg.sample.prompt).astype(np.int32)
    window_t = np.zeros(cfg.model.context, np.int32)
    recent = np.concatenate([tokenizer.begin, prompt])[-cfg.model.context :]
    window_t[: len(recent)] = recent
    state = window_t, np.int32(len(recent))
    params, key = lora.merge(params, cfg), jax.random.key(cfg.seed)
    tokens, end = [], math.inf
    for first in range(0, cfg.sample.length, CALL_TOKENS):
        if not from_process_0(time.monotonic() < end):
            break
        state, drawn = complete(params, state, first, key, cfg.sample.temperature, cfg)
        state, drawn = jax.tree.map(np.asarray, (state, drawn))
        tokens += drawn.tolist()
        end = end if first else time.monotonic() + limit_seconds
    return tokenizer.decode(np.concatenate([prompt, np.int32(tokens[: cfg.sample.length])]))


@partial(jax.jit, static_argnums=5)
def complete(
    params: Params,
    state: tuple[jax.Array, jax.Array],
    first: int,
    key: jax.Array,
    temperature: float,
    cfg: Config,
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """Generate CALL_TOKENS tokens; ``first`` is the number of tokens generated before.

    ``key`` is the random key of the whole text. Returns the new state and the tokens. The state is
    a window of tokens (context,) and the number of its filled positions. A full window drops its
    oldest token for each new one. Temperature 0 selects the most likely token.
    """

    def draw(state: tuple[jax.Array, jax.Array], i: jax.Array) -> tuple[tuple, jax.Array]:
        window_t, filled = state
        x_btd, head = hidden(params, window_t[None], cfg)
        x_btd = jax.lax.dynamic_slice_in_dim(x_btd, filled - 1, 1, axis=1)
        logits_v = padded_logits(x_btd, head, cfg.model)[0, 0, : cfg.model.vocabulary]
        own_key = jax.random.fold_in(key, i)
        drawn = jax.random.categorical(own_key, logits_v / jnp.maximum(temperature, 1e-6))
        token = jnp.where(temperature > 0, drawn, jnp.argmax(logits_v)).astype(jnp.int32)
        full = filled == cfg.model.context
        window_t = jnp.where(full, jnp.roll(window_t, -1), window_t)
        position = jnp.where(full, cfg.model.context - 1, filled)
        return (window_t.at[position].set(token), position + 1), token

    return jax.lax.scan(draw, state, first + jnp.arange(CALL_TOKENS))
