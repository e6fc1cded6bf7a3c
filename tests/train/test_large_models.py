"""Models of published sizes have equal logits in the trainer, in transformers, and after export.

Random weights in bfloat16, logits in float32. Needs 12 GB of memory and 10 GB of disk, so it runs
alone: in make test-large (TPUFLEET_LARGE=1), which CI runs after make test. test_transformers.py
does the same with small models.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from harness.trainer_processes import PROJECT
from tests.train.fixed_sequences import logits_of
from tests.train.test_transformers import PUBLISHED, run
from train.core import model
from train.core.config import ComputeConfig, load
from train.hf import weights

pytestmark = pytest.mark.skipif(not os.environ.get("TPUFLEET_LARGE"), reason="make test-large")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)  # free the disk: pytest would keep this large directory


def logits_of_transformers(directory: Path, tokens: np.ndarray) -> np.ndarray:
    np.save(directory / "tokens.npy", tokens)
    run("logits", directory)
    return np.load(directory / "logits.npy")


@pytest.mark.parametrize("name", ["Llama-3.2-1B", "Qwen3-0.6B"])
def test_logits_match_transformers_before_and_after_an_export(directory: Path, name: str):
    published = PUBLISHED[name]
    original, exported = directory / "original", directory / "exported"
    original.mkdir()
    (original / "config.json").write_text(json.dumps(published.content))
    run("random", original)
    preset = PROJECT / "train" / "configs" / f"{published.preset}.yml"
    cfg = load(preset, [*published.overrides, f"init_from={original}"])
    tokens = np.random.default_rng(0).integers(0, cfg.model.vocabulary, (1, 128))
    expected = logits_of_transformers(original, tokens)

    shapes = jax.eval_shape(lambda: model.init_params(jax.random.key(0), cfg.model))
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    initial = {
        n: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=device) for n, a in shapes.items()
    }
    params = weights.load_initial({"params": initial}, cfg)["params"]
    # Scan the layers: unrolled, they would need several copies of all matrices in memory.
    scanned = replace(cfg, compute=ComputeConfig(scan_layers=True))
    logits = np.asarray(logits_of(params, tokens, scanned))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-3)

    weights.export(exported, params, cfg, "transformers")
    np.testing.assert_allclose(
        logits_of_transformers(exported, tokens), expected, rtol=0, atol=1e-5
    )
