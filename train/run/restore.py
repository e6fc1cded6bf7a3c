"""Loading of a run's state from its checkpoint, or creation of its initial state (step 0)."""

import jax

from train.core.config import Config, ConfigError
from train.core.data import Corpus
from train.core.model import Params
from train.core.step import State, abstract_state, fresh_state
from train.hf import weights
from train.run.checkpoint import Checkpoints, identity
from train.run.contract import Contract


def load_state(checkpoints: Checkpoints, cfg: Config, mesh: jax.sharding.Mesh) -> State:
    """Load the checkpoint of the step ``checkpoints.latest``; None creates the state of step 0.

    The state is sharded over ``mesh`` as in sharding.py, however it was sharded when it was saved.
    """
    if checkpoints.latest is None:
        return weights.load_initial(jax.jit(fresh_state, static_argnums=0)(cfg), cfg)
    return checkpoints.restore(abstract_state(cfg, mesh))


def restored_params(
    cfg: Config,
    contract: Contract,
    corpus: Corpus,
    mesh: jax.sharding.Mesh,
    step: int | None = None,
) -> Params:
    """Load the parameters of the checkpoint of ``step``; None means the newest checkpoint.

    The parameters are sharded over ``mesh``, whose processes must all call this. Raises ConfigError
    if the checkpoint does not exist, or if it is of another model, corpus or optimizer.
    """
    directory, run_identity = contract.checkpoints, identity(cfg, corpus.fingerprint)
    checkpoints = Checkpoints(directory, cfg.checkpoint, run_identity)
    if checkpoints.latest is None:
        raise ConfigError(
            f"{directory}: has no checkpoint yet. Train until the first one is saved, or set "
            "checkpoint.directory"
        )
    if step is not None:
        checkpoints.select(step)
    params = {"params": abstract_state(cfg, mesh)["params"]}
    return checkpoints.restore(params)["params"]
