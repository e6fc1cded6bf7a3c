"""Cross-entropy: the value and the custom gradient equal those of a plain computation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from train.core import model
from train.core.config import ComputeConfig, Config, ModelConfig
from train.core.output import cross_entropy, padded_logits

CFG = ModelConfig(width=16, vocabulary=1100, head_bias=True)
B, T, D, V = 2, 12, CFG.width, CFG.padded_vocabulary


def inputs(dtype: str) -> tuple:
    draw = np.random.default_rng(0)
    x_btd, head_dv, head_v = (
        jnp.asarray(draw.normal(size=shape), dtype) for shape in ((B, T, D), (D, V), (V,))
    )
    targets_bt = jnp.asarray(draw.integers(0, CFG.vocabulary, (B, T)))
    weights_bt = jnp.asarray(draw.integers(0, 3, (B, T)), jnp.float32)
    return x_btd, (head_dv, head_v), targets_bt, weights_bt


def plain(x_btd, head, targets_bt, weights_bt) -> jax.Array:
    logits_btv = padded_logits(x_btd, head, CFG)
    losses_bt = optax.softmax_cross_entropy_with_integer_labels(logits_btv, targets_bt)
    return jnp.sum(weights_bt * losses_bt)


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_weighted_loss_and_gradients_equal_a_plain_computation(
    chunks: int, dtype: str, rtol: float
):
    arguments = inputs(dtype)
    cfg = Config(model=CFG, compute=ComputeConfig(loss_chunks=chunks))

    def chunked(*arguments) -> jax.Array:
        return 3 * cross_entropy(*arguments, cfg)

    actual = jax.jit(jax.value_and_grad(chunked, (0, 1)))(*arguments)
    exact = inputs(dtype)[:2]
    exact = jax.tree.map(lambda a: a.astype(jnp.float32), exact) + arguments[2:]
    expected = jax.value_and_grad(lambda *a: 3 * plain(*a), (0, 1))(*exact)
    np.testing.assert_allclose(actual[0], expected[0], rtol=rtol)
    np.testing.assert_allclose(jax.jit(chunked)(*arguments), actual[0], rtol=1e-6)
    for gradient, reference in zip(*map(jax.tree.leaves, (actual[1], expected[1])), strict=True):
        error = np.linalg.norm(np.asarray(gradient, np.float32) - reference)
        assert error <= rtol * np.linalg.norm(reference)


def test_the_gradient_of_a_frequent_token_is_summed_in_float32():
    tokens_bt = jnp.zeros((4, 1024), int)

    def row(dtype: str) -> np.ndarray:
        def total(tokens_vd: jax.Array) -> jax.Array:
            return jnp.sum(model.embed(tokens_vd.astype(dtype), tokens_bt).astype(jnp.float32))

        return np.asarray(jax.jit(jax.grad(total))(jnp.ones((2048, 8))))[0]

    np.testing.assert_allclose(row("bfloat16"), row("float32"), rtol=1e-2)
