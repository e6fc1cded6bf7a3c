"""Loss of a checkpoint on the held-out text."""

import math
from dataclasses import dataclass

import jax

from train.core import attention
from train.core.config import Config
from train.core.data import Corpus
from train.core.model import Params
from train.core.step import BATCH_SPEC, evaluate, heldout_batches


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation on ``sequences`` held-out sequences.

    ``loss`` is in nats per token, ``perplexity`` its exponential. ``bits_per_byte`` counts UTF-8
    bytes of the text, so it is comparable between tokenizers. It is None for a mixture,
    because the shares of its sources are by sequences, not by bytes.
    """

    sequences: int
    loss: float
    perplexity: float
    bits_per_byte: float | None


def evaluate_heldout(
    params: Params, cfg: Config, corpus: Corpus, devices: jax.sharding.Mesh
) -> Evaluation:
    """Compute the loss on ``evaluate.batches`` batches, spaced evenly over the held-out text.

    The batches are sharded over ``devices``, whose processes must all call this. Raises ConfigError
    if less than one sequence is held out, or if devices do not support the configured attention.
    """
    attention.check(cfg)
    meta = corpus.meta
    corpus.check_heldout("")
    batches = heldout_batches(corpus, cfg, jax.NamedSharding(devices, BATCH_SPEC))
    loss = float(evaluate(params, batches, cfg))
    bits = None
    if not cfg.data.mixture:
        bits = loss / math.log(2) * meta.heldout_learned / meta.heldout_bytes
    return Evaluation(cfg.evaluate.batches * cfg.batch, loss, math.exp(min(loss, 700)), bits)
