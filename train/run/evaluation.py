"""Loss of a checkpoint on the held-out text."""

import math

import jax

from train.core import attention
from train.core.config import Config
from train.core.data import Corpus
from train.core.model import Params
from train.core.step import BATCH_SPEC, evaluate, heldout_batches


def evaluate_heldout(
    params: Params, cfg: Config, corpus: Corpus, mesh: jax.sharding.Mesh
) -> tuple[float, float | None]:
    """Compute the loss on ``evaluate.batches`` batches, spaced evenly over the held-out text.

    Returns the loss in nats per token, and in bits per UTF-8 byte of the text. Bits per byte are
    comparable between tokenizers. They are None for a mixture, because the weights of a mixture are
    shares of sequences, not of bytes.

    The batches are sharded over ``mesh``, whose processes must all call this. Raises ConfigError
    if less than one sequence is held out, or if devices do not support the configured attention.
    """
    attention.check(cfg)
    corpus.check_heldout()
    batches = heldout_batches(corpus, cfg, jax.NamedSharding(mesh, BATCH_SPEC))
    loss = float(evaluate(params, batches, cfg))
    if cfg.data.mixture:
        return loss, None
    [meta] = corpus.metas
    return loss, loss / math.log(2) * meta.heldout_learned / meta.heldout_bytes
