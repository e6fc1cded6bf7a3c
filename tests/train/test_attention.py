"""Outputs and gradients of every attention implementation, compared with a loop in float64."""

import math
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.core import attention
from train.core.config import ConfigError, build


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attend one query at a time, in float64; keys and values may have fewer heads."""
    shared = q.shape[2] // k.shape[2]
    y = np.zeros(q.shape)
    for b, i, h in np.ndindex(q.shape[:3]):
        scores = k[b, : i + 1, h // shared] @ q[b, i, h]
        weights = np.exp(scores - scores.max())
        y[b, i, h] = weights / weights.sum() @ v[b, : i + 1, h // shared]
    return y


def inputs(t: int, heads: int = 2, kv_heads: int = 2, scale: float = 1.0) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    q, k, v = (scale * draw.normal(size=(2, t, n, 4)) for n in (heads, kv_heads, kv_heads))
    return [q / math.sqrt(4), k, v]


GROUPED = {"t": attention.BLOCK + 5, "heads": 6, "kv_heads": 2}
LARGE_SCORES = {"t": attention.BLOCK + 5, "scale": 30.0}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("plain", {"t": 5}),
        ("blocks", {"t": 1}),
        ("blocks", {"t": attention.BLOCK}),
        ("blocks", {"t": attention.BLOCK + 1}),
        ("blocks", {"t": 2 * attention.BLOCK}),
        ("splash", {"t": 5}),
        ("splash", {"t": attention.LANES}),
        *((kind, GROUPED) for kind in ("plain", "blocks", "splash")),
        *((kind, LARGE_SCORES) for kind in ("plain", "blocks", "splash")),
    ],
    ids=str,
)
def test_attention_equals_the_reference(kind: str, options: dict[str, float]):
    q, k, v = inputs(**options)
    y = attention.causal(*(jnp.float32(a) for a in (q, k, v)), kind)
    atol = 1e-2 if options is LARGE_SCORES else 2e-6
    np.testing.assert_allclose(y, reference(q, k, v), atol=atol)


@pytest.mark.parametrize("kind", ["plain", "blocks", "splash"])
def test_the_gradient_equals_the_reference_s_slope(kind: str):
    arrays, draw = inputs(attention.BLOCK + 5), np.random.default_rng(1)
    weights = draw.normal(size=arrays[0].shape)
    moves = [draw.normal(size=a.shape) for a in arrays]

    @jax.jit
    def gradients(arrays: list[jax.Array]) -> list[jax.Array]:
        return jax.grad(lambda a: jnp.sum(attention.causal(*a, kind) * weights))(arrays)

    def moved(by: float) -> float:
        return np.sum(
            reference(*(a + by * m for a, m in zip(arrays, moves, strict=True))) * weights
        )

    grads = gradients([jnp.float32(a) for a in arrays])
    along = sum(np.vdot(g, m) for g, m in zip(grads, moves, strict=True))
    assert along == pytest.approx((moved(1e-5) - moved(-1e-5)) / 2e-5, rel=1e-4)


@pytest.mark.parametrize("kind", ["plain", "blocks", "splash"])
def test_positions_of_a_segment_attend_only_to_their_own_segment(kind: str):
    t = attention.BLOCK + 5
    q, k, v = inputs(t, heads=4, kv_heads=2)
    borders = np.array([[0, 7, attention.BLOCK - 1, t], [0, 30, 31, t]])
    segments = np.array([np.repeat([1, 2, 0], np.diff(row)) for row in borders], np.int32)
    expected = np.zeros(q.shape)
    for b, row in enumerate(borders):
        for i, j in pairwise(row):
            expected[b, i:j] = reference(*(a[b : b + 1, i:j] for a in (q, k, v)))[0]
    arrays = [jnp.float32(a) for a in (q, k, v)]

    def attend(arrays: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
        y = attention.causal(*arrays, kind, jnp.array(segments))
        return jnp.sum(y[:, 31:40]), y

    (_, y), slope = jax.jit(jax.value_and_grad(attend, has_aux=True))(arrays)
    np.testing.assert_allclose(y, expected, atol=2e-6)
    # Outputs 31 to 39 do not depend on values before 31, which are in other segments.
    assert not slope[2][1, :31].any()


def test_bfloat16_attention_computes_in_float32():
    q, k, v = (np.asarray(jnp.bfloat16(a), np.float64) for a in inputs(attention.BLOCK + 5))
    y = attention.causal(*(jnp.bfloat16(a) for a in (q, k, v)), "blocks")
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float64), reference(q, k, v), atol=0.03)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("kv_heads", [2, 6])
def test_cudnn_equals_the_reference_within_bfloat16_rounding(kv_heads: int):
    draw = np.random.default_rng(0)
    arrays = (draw.normal(size=(2, 128, n, 64)) for n in (6, kv_heads, kv_heads))
    halves = [jnp.bfloat16(a * 64**-0.25) for a in arrays]
    assert attention.fastest(halves[0]) == "cudnn"
    y = attention.causal(*halves, "cudnn")
    exact = reference(*(np.asarray(a, np.float64) for a in halves))
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, atol=0.03)


@pytest.mark.parametrize(
    ("backend", "dtype", "width", "form"),
    [
        ("cpu", "float32", 64, "blocks"),
        ("tpu", "float32", 64, "splash"),
        ("gpu", "bfloat16", 64, "cudnn"),
        ("gpu", "float32", 64, "plain"),
        ("gpu", "bfloat16", 60, "plain"),
        ("gpu", "bfloat16", 256, "plain"),
    ],
)
@pytest.mark.usefixtures("no_mesh")
def test_auto_selects_an_implementation_for_each_device(
    monkeypatch: pytest.MonkeyPatch, backend: str, dtype: str, width: int, form: str
):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert attention.fastest(jnp.zeros((1, 1, 1, width), dtype)) == form


@pytest.mark.parametrize("compute", [{"dtype": "bfloat16"}, {}], ids=["bfloat16", "float32"])
def test_cudnn_without_a_supported_device_is_refused_in_one_line(compute: dict[str, str]):
    cfg = build({"compute": {"attention": "cudnn"} | compute})
    with pytest.raises(ConfigError, match=r"^compute\.attention: cudnn needs a GPU, .* not cpu, "):
        attention.check(cfg)
    attention.check(build({}))
