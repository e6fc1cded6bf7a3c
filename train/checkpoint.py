"""The run's state on a directory that all processes see, by Orbax.

A checkpoint of step s is the state after s updates. Each carries, as custom metadata, what it is
of: the model's shape and the corpus's fingerprint.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from train.config import CheckpointConfig, Config, ConfigError, ModelConfig
from train.corpus import Meta
from train.step import State


class Checkpoints:
    """The checkpoints of one run. Every method is called by all processes alike."""

    def __init__(
        self, directory: Path, cfg: CheckpointConfig, identity: dict[str, Any], tidy: bool = True
    ) -> None:
        """Open the directory, which must be there already.

        With ``tidy``, what a killed save left is removed: for the run itself, not for a reader
        that may find one under way.
        """
        self.directory = directory
        self._identity = identity
        self._orbax = ocp.training.Checkpointer(
            directory,
            # Orbax's own default would also ask for a SIGTERM; here the loop alone does.
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(cfg.every),
            preservation_policy=ocp.training.preservation_policies.LatestN(cfg.keep),
            cleanup_tmp_directories=tidy,
        )
        self._last = self.latest

    @property
    def latest(self) -> int | None:
        """The last step that was saved whole."""
        return self._orbax.latest.step if self._orbax.latest else None

    def save(self, step: int, state: State, wait: bool = False) -> None:
        """Save, in the background unless ``wait``; a step that is there already is left alone."""
        if step != self._last:
            self._orbax.save_async(step, state, force=True, custom_metadata=self._identity)
            self._last = step
        if wait:
            self._orbax.wait()

    def restore(self, step: int, abstract: State) -> State:
        """Load a step into the shapes and shardings of ``abstract``.

        Raises ConfigError, naming the first thing that differs, for a checkpoint of another model
        or corpus.
        """
        found = dict(self._orbax.metadata(step).custom_metadata or {})
        # An option that a later release added is at its default in what was saved before.
        found["model"] = asdict(ModelConfig()) | found.get("model", {})
        if difference := _difference(found, self._identity):
            raise ConfigError(
                f"{self.directory}/{step}: is a checkpoint of another run: {difference}; "
                "take another directory or run name, or remove it"
            )
        return self._orbax.load(step, abstract)

    def close(self) -> None:
        """Wait for what is still being saved."""
        self._orbax.close()


def identity(cfg: Config, corpus: Meta) -> dict[str, Any]:
    """Say what a checkpoint belongs to: two that differ here must not be mixed.

    Dropout may: it is a matter of training, and shapes nothing.
    """
    return {
        "model": {k: v for k, v in asdict(cfg.model).items() if k != "dropout"},
        "corpus": corpus.fingerprint,
    }


def abstract(shapes: State, sharding: jax.sharding.Sharding) -> State:
    """Describe the state to load: shapes, as ``jax.eval_shape`` gives them, and where to."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), shapes)


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Name the first key whose values differ, with both; empty if there is none."""
    for key in wanted:
        there, here = found.get(key), wanted[key]
        if isinstance(here, dict) and isinstance(there, dict):
            if inner := _difference(there, here):
                return f"{key}.{inner}"
        elif there != here:
            return f"{key} is {there} there and {here} here"
    return ""
