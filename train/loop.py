"""The training loop: what a run does from its first step to its exit code."""

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from train import mesh, model, optimizer
from train.checkpoint import Checkpoints, State, abstract, identity
from train.config import Config, ConfigError, DataConfig
from train.contract import (
    DONE,
    INTERRUPTED,
    NOT_A_NUMBER,
    Contract,
    Heartbeat,
    write_atomically,
)
from train.data import Corpus
from train.metrics import InFlight, Metrics, MetricsLog
from train.sample import passage

log = logging.getLogger(__name__)

SAMPLE = "sample.txt"
"""The passage of a run that is done, in the run directory of process 0."""


def fresh_state(cfg: Config) -> State:
    """Make the state of step 0, drawn from the seed alone."""
    params = model.init_params(jax.random.key(cfg.seed), cfg.model)
    opt_state = optimizer.make(cfg).init(params)
    return {"params": params, "opt_state": opt_state, "step": jnp.zeros((), jnp.int32)}


def load_state(checkpoints: Checkpoints, cfg: Config, sharding: jax.sharding.Sharding) -> State:
    """Load the last checkpoint, or make the state of step 0 where there is none yet."""
    if checkpoints.latest is None:
        return jax.jit(fresh_state, static_argnums=0, out_shardings=sharding)(cfg)
    shapes = jax.eval_shape(partial(fresh_state, cfg))
    return checkpoints.restore(checkpoints.latest, abstract(shapes, sharding))


@partial(jax.jit, static_argnums=2, donate_argnums=0)
def update(state: State, windows_bt: jax.Array, cfg: Config) -> tuple[State, dict[str, jax.Array]]:
    """Learn from one batch: (b, context + 1) integers, split over the mesh's ``data`` axis.

    Gives the next state and the scalars of this step (Metrics says which), the same everywhere.
    """
    loss, grads = jax.value_and_grad(model.loss)(state["params"], windows_bt, cfg.model)
    updates, opt_state = optimizer.make(cfg).update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    values = {
        "loss": loss,
        "grad_norm": optax.tree.norm(grads),
        "param_norm": optax.tree.norm(params),
        "lr": optimizer.learning_rate(state["step"], cfg),
    }
    return {"params": params, "opt_state": opt_state, "step": state["step"] + 1}, values


def global_batch(corpus: Corpus, step: int, sharding: jax.sharding.Sharding) -> jax.Array:
    """Make a step's batch as one array over all processes; each reads only its devices' rows."""
    shape = (corpus.batch, corpus.window)

    def rows(index: tuple[slice, ...]) -> np.ndarray:
        return corpus.rows(step, index[0])

    return jax.make_array_from_callback(shape, sharding, rows)


class Run:
    """One process's part in an attempt of a run."""

    def __init__(
        self, cfg: Config, contract: Contract, corpus: Corpus, heartbeat: Heartbeat
    ) -> None:
        """Join in: raises ConfigError where config, corpus, devices or checkpoint don't fit."""
        self.cfg, self.contract, self.corpus, self.heartbeat = cfg, contract, corpus, heartbeat
        devices = mesh.make(cfg)
        self.split = jax.NamedSharding(devices, jax.P("data"))
        self.whole = jax.NamedSharding(devices, jax.P())
        self.first = jax.process_index() == 0
        what = identity(cfg, corpus.meta)
        # What the corpus is stands in its fingerprint; where a worker keeps it is its own affair.
        mesh.check_alike(
            repr((what, replace(cfg, data=DataConfig()))),
            "have another config or corpus than process 0; push the same to all workers",
        )
        self.checkpoints = Checkpoints(contract.checkpoints, cfg.checkpoint, what)
        mesh.check_alike(
            repr(self.checkpoints.latest),
            "find another last checkpoint than process 0; all must see one directory as "
            f"{contract.checkpoints}",
        )
        self.step = self.checkpoints.latest or 0
        self.state = load_state(self.checkpoints, cfg, self.whole)
        heartbeat.step = self.step
        self.in_flight = InFlight(cfg.tokens_per_step)
        self.metrics = (
            MetricsLog(contract.run_dir / "metrics.jsonl", self.step) if self.first else None
        )

    def go(self) -> int:
        """Train until done, interrupted or not a number, and return the exit code."""
        steps, every = self.cfg.steps, self.cfg.checkpoint.every
        if self.step >= steps:
            self.say("step %d of %d was reached before: nothing to do", self.step, steps)
            if not (self.contract.run_dir / SAMPLE).exists():  # killed between save and passage
                self.write_sample()
            return self.end("done", DONE)
        self.say_start()
        while self.step < steps:
            if mesh.interrupted(self.step):
                return self.leave()
            windows_bt = global_batch(self.corpus, self.step, self.split)
            self.state, values = update(self.state, windows_bt, self.cfg)
            self.step += 1
            self.in_flight.add(self.step, values)
            saving = self.step % every == 0 or self.step == steps
            if not self.report(wait=saving):
                return self.stop()
            if saving:
                self.checkpoints.save(self.step, self.state, wait=self.step == steps)
        self.write_sample()
        return self.end("done", DONE)

    def report(self, wait: bool = False) -> bool:
        """Log the steps that are finished; False at the first that is not a number.

        All processes see the same numbers, so that all decide alike.
        """
        for metrics in self.in_flight.finished(wait):
            self.heartbeat.progress(metrics.step, metrics.loss, metrics.tokens_per_second)
            if self.metrics:
                self.metrics.write(metrics)
                self.say_step(metrics)
            if not metrics.finite:
                log.error(
                    "step %d: loss, gradient or parameters are no numbers; not saved", metrics.step
                )
                return False
        return True

    def leave(self) -> int:
        """Save at the step that all processes agreed on."""
        if not self.report(wait=True):
            return self.stop()
        self.checkpoints.save(self.step, self.state, wait=True)
        self.say("interrupted: saved at step %d", self.step)
        return self.end("interrupted", INTERRUPTED)

    def stop(self) -> int:
        """Leave without a save: what was learned is not a number."""
        return self.end("nan", NOT_A_NUMBER)

    def end(self, state: str, code: int) -> int:
        """Close what is open, note how it ended, and hand on the exit code."""
        self.checkpoints.close()
        self.heartbeat.write(state)
        return code

    def write_sample(self) -> None:
        """Let process 0 write a passage to the log and to its run directory."""
        if not self.first or not self.cfg.sample.length:
            return
        text = passage(own_copy(self.state["params"]), self.cfg)
        write_atomically(self.contract.run_dir / SAMPLE, text + "\n")
        log.info("sample:\n%s", text)

    def say(self, message: str, *values: Any) -> None:
        """Log a line in the name of the run and of this process."""
        log.info("%s: " + message, self.contract.run, *values)

    def say_start(self) -> None:
        """Log what is about to be trained, and where."""
        parameters = sum(a.size for a in jax.tree.leaves(self.state["params"]))
        self.say(
            "process %d of %d, %d %s device(s), %d parameters, %s, from step %d of %d",
            jax.process_index(),
            jax.process_count(),
            jax.device_count(),
            jax.default_backend(),
            parameters,
            self.corpus.meta.name,
            self.step,
            self.cfg.steps,
        )

    def say_step(self, metrics: Metrics) -> None:
        """Log every n-th step, the attempt's first and the last."""
        first = metrics.tokens_per_second is None
        if first or metrics.step % self.cfg.log_every == 0 or metrics.step == self.cfg.steps:
            rate = "" if first else f" tokens/s {metrics.tokens_per_second:.0f}"
            log.info("step %d/%d loss %.4f%s", metrics.step, self.cfg.steps, metrics.loss, rate)


def own_copy(params: model.Params) -> model.Params:
    """Give this process's copy of parameters that every device holds whole."""
    return jax.tree.map(lambda a: jnp.asarray(np.asarray(a.addressable_data(0))), params)


def restored_params(cfg: Config, contract: Contract, corpus: Corpus) -> model.Params:
    """Load the parameters of the run's last checkpoint, for one process alone.

    Raises ConfigError where there is none, or one of another model or corpus.
    """
    if not contract.checkpoints.is_dir():
        raise ConfigError(f"{contract.checkpoints}: no checkpoint there yet")
    what = identity(cfg, corpus.meta)
    checkpoints = Checkpoints(contract.checkpoints, cfg.checkpoint, what, tidy=False)
    if checkpoints.latest is None:
        raise ConfigError(f"{contract.checkpoints}: no checkpoint there yet")
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return load_state(checkpoints, cfg, device)["params"]
