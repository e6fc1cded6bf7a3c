"""The training loop: what a run does from its first step to its exit code."""

import itertools
import logging
import time
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from train import mesh, model, weights
from train.checkpoint import Checkpoints, identity
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
from train.metrics import InFlight, Metrics
from train.report import Report
from train.sample import passage
from train.step import (
    SPLIT,
    State,
    evaluate,
    fresh_state,
    heldout_windows,
    training_windows,
    update,
)
from train.trace import Tracer
from train.watchdog import Watchdog

log = logging.getLogger(__name__)

SAMPLE = "sample.txt"
"""The passage of a run that is done, in the run directory of process 0."""


def load_state(checkpoints: Checkpoints, cfg: Config, devices: jax.sharding.Mesh | None) -> State:
    """Load the last checkpoint, or make the state of step 0 where there is none yet.

    It is spread over the mesh as sharding.py says, however it was when it was saved; without a
    mesh it lies on one device.
    """
    if checkpoints.latest is None:
        return weights.begin(jax.jit(fresh_state, static_argnums=0)(cfg), cfg)

    def place(a: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        if devices is None:
            where = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        else:
            where = jax.NamedSharding(devices, a.sharding.spec if a.sharding else jax.P())
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where)

    shapes = jax.eval_shape(partial(fresh_state, cfg))
    return checkpoints.restore(checkpoints.latest, jax.tree.map(place, shapes))


class Run:
    """One process's part in an attempt of a run."""

    def __init__(
        self, cfg: Config, contract: Contract, corpus: Corpus, heartbeat: Heartbeat
    ) -> None:
        """Join in: raises ConfigError where config, corpus, devices or checkpoint don't fit."""
        self.cfg, self.contract, self.corpus, self.heartbeat = cfg, contract, corpus, heartbeat
        devices = mesh.make(cfg)
        self.split = jax.NamedSharding(devices, SPLIT)
        self.first = jax.process_index() == 0
        what = identity(cfg, corpus.meta)
        # What the corpus is stands in its fingerprint; where a worker keeps it is its own affair.
        mesh.check_alike(
            repr((what, replace(cfg, data=DataConfig()))),
            "have another config or corpus than process 0; push the same to all workers",
        )
        self.checkpoints = Checkpoints(contract.checkpoints, cfg.checkpoint, what)
        self.step = self.checkpoints.latest or 0
        self.state = load_state(self.checkpoints, cfg, devices)
        self.heldout = heldout_windows(corpus, cfg, self.split) if cfg.evaluate.every else None
        self.started = self.step
        self.save_wish = mesh.Wish(devices)
        self.saved_at = time.monotonic()
        self.watchdog = Watchdog(cfg.hang_after, heartbeat)
        heartbeat.step = self.step
        self.in_flight = InFlight(cfg.tokens_per_step)
        self.metrics = Report(cfg, contract, self.step) if self.first else None
        self.tracer = Tracer(contract.run_dir, cfg.profile, self.step)

    def go(self) -> int:
        """Train until done, interrupted or not a number, and return the exit code."""
        if self.step >= self.cfg.steps:
            self.say("step %d of %d was reached before: nothing to do", self.step, self.cfg.steps)
            # A kill may have come between save and passage. All must decide alike.
            if not mesh.from_first((self.contract.run_dir / SAMPLE).exists()):
                self.write_sample()
            return self.end("done", DONE)
        self.say_start()
        for call in itertools.count():
            if self.step == self.cfg.steps:
                self.write_sample()
                return self.end("done", DONE)
            if mesh.interrupted(call):
                return self.leave()
            if not self.advance() or not self.save_in_between(call):
                return self.stop()

    def advance(self) -> bool:
        """Take the steps of one call, and do what is due behind them; False if not a number.

        Calls end at the same steps in every attempt, so that a resumed run makes the same ones.
        """
        cfg, n = self.cfg, self.cfg.compute.steps_per_call
        last = min(self.step - self.step % n + n, cfg.steps)
        self.tracer.before(self.step, self.state)
        windows = training_windows(self.corpus, self.step, last, cfg, self.split)
        self.state, values = update(self.state, windows, cfg)
        self.step = last
        heldout_loss = None
        if self.due(cfg.evaluate.every):
            heldout_loss = evaluate(self.state["params"], self.heldout, cfg)
        self.in_flight.add(self.step, values, heldout_loss)
        saving = self.due(cfg.checkpoint.every) or self.step == cfg.steps
        if not self.report(wait=saving):
            return False
        if saving:
            self.save(wait=self.step == cfg.steps)
        if self.due(cfg.sample.every) and self.step < cfg.steps:
            self.log_sample()
        return True

    def save_in_between(self, call: int) -> bool:
        """Save when the last save is ``minutes`` old; False if not a number."""
        seconds = 60 * self.cfg.checkpoint.minutes
        old = time.monotonic() - self.saved_at > seconds
        if not seconds or not self.save_wish.granted(call, old):
            return True
        if not self.report(wait=True):
            return False
        self.save()
        return True

    def save(self, wait: bool = False) -> None:
        """Save the state, whose steps have all been found to be numbers."""
        self.checkpoints.save(self.step, self.state, wait or self.cfg.checkpoint.wait)
        self.saved_at = time.monotonic()

    def due(self, every: int) -> bool:
        """Whether what is done every n steps, and with n = 0 never, is to be done now."""
        return every > 0 and self.step % every == 0

    def report(self, wait: bool = False) -> bool:
        """Log the steps that are finished; False at the first that is not a number.

        All processes see the same numbers, so that all decide alike.
        """
        for metrics in self.in_flight.finished(wait):
            self.heartbeat.progress(metrics.step, metrics.loss, metrics.tokens_per_second)
            self.watchdog.step_finished()
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
        self.watchdog.off()
        self.save(wait=True)
        self.say("interrupted: saved at step %d", self.step)
        return self.end("interrupted", INTERRUPTED)

    def stop(self) -> int:
        """Leave without a save: what was learned is not a number."""
        return self.end("nan", NOT_A_NUMBER)

    def end(self, state: str, code: int) -> int:
        """Close what is open, note how it ended, and hand on the exit code."""
        self.watchdog.off()
        self.tracer.close(self.step, self.state)
        self.checkpoints.close()
        self.heartbeat.write(state)
        if self.metrics:
            self.metrics.close(done=code == DONE)
        return code

    def write_sample(self) -> None:
        """Write a passage to the log and to process 0's run directory."""
        self.watchdog.off()
        text = self.log_sample()
        if self.first and self.cfg.sample.length:
            write_atomically(self.contract.run_dir / SAMPLE, text + "\n")

    def log_sample(self) -> str:
        """Write a passage to the log of process 0, and give it.

        All processes make it together, each with its share of the parameters: one that waited
        for another's passage would have to know how long that takes.
        """
        if not self.cfg.sample.length:
            return ""
        text = passage(self.state["params"], self.cfg, self.corpus.tokenizer)
        if self.first:
            log.info("step %d writes:\n%s", self.step, text)
        return text

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
        first = metrics.step == self.started + 1
        if first or metrics.step % self.cfg.log_every == 0 or metrics.step == self.cfg.steps:
            rate = metrics.tokens_per_second
            log.info(
                "step %d/%d loss %.4f%s",
                metrics.step,
                self.cfg.steps,
                metrics.loss,
                f" tokens/s {rate:.0f}" if rate else "",
            )
        if metrics.heldout_loss is not None:
            log.info(
                "step %d/%d held-out loss %.4f", metrics.step, self.cfg.steps, metrics.heldout_loss
            )


def restored_params(
    cfg: Config, contract: Contract, corpus: Corpus, step: int | None = None
) -> model.Params:
    """Load the parameters of the run's last checkpoint, or a step's, for one process alone.

    Raises ConfigError where there is none, or one of another model or corpus.
    """
    what = identity(cfg, corpus.meta)
    checkpoints = Checkpoints(contract.checkpoints, cfg.checkpoint, what, tidy=False)
    if checkpoints.latest is None:
        raise ConfigError(f"{contract.checkpoints}: no checkpoint there yet")
    if step is not None:
        checkpoints.choose(step)
    return load_state(checkpoints, cfg, None)["params"]
