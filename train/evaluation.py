"""Loss of a checkpoint on the held-out text."""

import math
from dataclasses import dataclass

from train.config import Config, ConfigError
from train.data import Corpus
from train.model import Params
from train.step import evaluate


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation on ``sequences`` held-out sequences.

    ``loss`` is in nats per token, ``perplexity`` its exponential. ``bits_per_byte`` counts UTF-8
    bytes of the text, so it is comparable between tokenizers.
    """

    sequences: int
    loss: float
    perplexity: float
    bits_per_byte: float


def evaluate_heldout(params: Params, cfg: Config, corpus: Corpus) -> Evaluation:
    """Compute the loss on ``evaluate.batches`` batches, spaced evenly over the held-out text.

    Raises ConfigError if less than one sequence is held out.
    """
    meta, count = corpus.meta, cfg.evaluate.batches * cfg.batch
    if meta.heldout < corpus.sequence_length:
        raise ConfigError(
            f"data.heldout: {meta.name} has {meta.heldout} tokens held out, fewer than one "
            f"sequence of {corpus.sequence_length}; hold out more"
        )
    batches = corpus.heldout_rows(count).reshape(cfg.evaluate.batches, 1, cfg.batch, -1)
    loss = float(evaluate(params, batches, cfg))
    bits = loss / math.log(2) * meta.heldout / meta.heldout_bytes
    return Evaluation(count, loss, math.exp(min(loss, 700)), bits)
