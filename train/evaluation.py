"""A checkpoint's loss on the held-out text."""

import math
from dataclasses import dataclass

from train.config import Config, ConfigError
from train.data import Corpus
from train.model import Params
from train.step import evaluate


@dataclass(frozen=True)
class Figures:
    """What a model makes of text that it was never trained on.

    ``loss`` is in nats a token, ``perplexity`` its exponential; ``bits_per_byte`` is comparable
    between tokenizers (of the text's UTF-8 bytes).
    """

    windows: int
    loss: float
    perplexity: float
    bits_per_byte: float


def evaluation(params: Params, cfg: Config, corpus: Corpus) -> Figures:
    """Try ``evaluate.batches`` batches of windows, spread evenly over the held-out text.

    Raises ConfigError where less than one window is held out.
    """
    meta, count = corpus.meta, cfg.evaluate.batches * cfg.batch
    if meta.heldout < corpus.window:
        raise ConfigError(
            f"data.heldout: {meta.name} has {meta.heldout} tokens held out, fewer than one window "
            f"of {corpus.window} to evaluate; hold out more"
        )
    windows = corpus.heldout_rows(count).reshape(cfg.evaluate.batches, 1, cfg.batch, -1)
    loss = float(evaluate(params, windows, cfg))
    bits = loss / math.log(2) * meta.heldout / meta.heldout_bytes
    return Figures(count, loss, math.exp(min(loss, 700)), bits)
