"""The training loop, from the first step to the exit code."""

import itertools
import logging
import time
from dataclasses import replace
from typing import Any

import jax

from train import STARTED
from train.core.config import Config, DataConfig
from train.core.data import Corpus
from train.core.step import BATCH_SPEC, evaluate, heldout_batches, training_batches, update
from train.run.checkpoint import Checkpoints, identity
from train.run.contract import DONE, INTERRUPTED, NOT_A_NUMBER, Contract, Heartbeat
from train.run.mesh import SaveRequest, check_equal, from_process_0, interrupted, make_training_mesh
from train.run.metrics import MAX_IN_FLIGHT, InFlight, Metrics, memory
from train.run.report import Report
from train.run.restore import load_state
from train.run.sample import generate
from train.run.trace import Tracer
from train.run.watchdog import Watchdog
from train.storage import logged_errors, write_atomically

log = logging.getLogger(__name__)

SAMPLE = "sample.txt"
"""File in process 0's run directory with the text generated at the end of the run."""
SAMPLE_SECONDS = 10
"""Time limit of a sample: training, or the save after SIGTERM, waits for the sample."""


class Run:
    """Training in one process of one attempt of a run."""

    def __init__(
        self, cfg: Config, contract: Contract, corpus: Corpus, heartbeat: Heartbeat
    ) -> None:
        """Load the state; raises ConfigError if config, corpus, devices and checkpoint disagree."""
        self.cfg, self.contract, self.corpus, self.heartbeat = cfg, contract, corpus, heartbeat
        self.watchdog = Watchdog(cfg.hang_after, heartbeat)
        mesh = make_training_mesh(cfg)
        self.batch_sharding = jax.NamedSharding(mesh, BATCH_SPEC)
        self.is_first = jax.process_index() == 0
        run_identity = identity(cfg, corpus.fingerprint)
        # Compare the corpus by fingerprint, not by paths, which may differ between workers.
        check_equal(
            repr((run_identity, replace(cfg, data=DataConfig()))),
            "have a different config or corpus than process 0. Push the same to all workers",
        )
        directory = contract.checkpoints
        self.checkpoints = Checkpoints(directory, cfg.checkpoint, run_identity, contract.run)
        self.step = self.checkpoints.latest or 0
        self.state = load_state(self.checkpoints, cfg, mesh)
        self.heldout = None
        if cfg.evaluate.every:
            self.heldout = heldout_batches(corpus, cfg, self.batch_sharding)
        self.started = self.step
        self.diverged: int | None = None
        self.save_request = SaveRequest(mesh)
        self.saved_at = time.monotonic()
        heartbeat.start_step = self.step
        heartbeat.write("starting")
        self.save_seconds = 0.0
        self.in_flight = InFlight(cfg)
        self.metrics = Report(cfg, contract, self.step) if self.is_first else None
        self.tracer = Tracer(contract.run_dir, cfg.profile, self.step)

    def train(self) -> int:
        """Train until done, interrupted or diverged, and return the exit code."""
        if self.step >= self.cfg.steps:
            self.log("already at step %d of %d: nothing to do", self.step, self.cfg.steps)
            self.heartbeat.step = self.step
            # The previous attempt may have been killed after the last save, before it wrote the
            # sample. Then write it now. All processes must do the same, because they generate the
            # sample together.
            if not from_process_0((self.contract.run_dir / SAMPLE).exists()):
                self.sample()
            return self.end("done", DONE)
        self.log_start()
        for call in itertools.count():
            if self.step == self.cfg.steps:
                self.sample()
                return self.end("done", DONE)
            if interrupted(call):
                return self.end_interrupted()
            if not self.advance() or not self.save_temporary(call):
                return self.end("nan", NOT_A_NUMBER)

    def advance(self) -> bool:
        """Train the steps of one call of ``update``, then evaluate, save and sample if due.

        Returns False if training diverged. Calls end at the same steps in every attempt, so that a
        resumed run repeats the same calls.
        """
        cfg, n = self.cfg, self.cfg.compute.steps_per_call
        last = min(self.step - self.step % n + n, cfg.steps)
        self.tracer.before(self.step, self.state)
        batches = training_batches(self.corpus, self.step, last, cfg, self.batch_sharding)
        self.state, values = update(self.state, batches, cfg)
        self.step = last
        heldout_loss = None
        if self.due(cfg.evaluate.every):
            heldout_loss = evaluate(self.state["params"], self.heldout, cfg)
        self.in_flight.add(self.step, values, heldout_loss)
        saving = self.due(cfg.checkpoint.every) or self.step == cfg.steps
        sampling = self.due(cfg.sample.every) and self.step < cfg.steps
        if not self.report(wait=saving or sampling):
            return False
        if saving:
            self.save(wait=self.step == cfg.steps)
        if sampling:
            self.sample()
        return True

    def save_temporary(self, call: int) -> bool:
        """Request a save if the last one is older than ``checkpoint.minutes``, unless that is 0.

        Saves in a later call of this method, which is the same call in all processes (SaveRequest).
        Returns False, without saving, if the run diverged.
        """
        seconds = 60 * self.cfg.checkpoint.minutes
        is_old = time.monotonic() - self.saved_at > seconds
        if not seconds or not self.save_request.should_save(call, is_old):
            return True
        if not self.report(wait=True):
            return False
        self.save()
        return True

    def save(self, wait: bool = False) -> None:
        """Save the state. Call this only after ``report(wait=True)`` has returned True."""
        begun = time.monotonic()
        self.checkpoints.save(self.step, self.state, wait or self.cfg.checkpoint.wait)
        self.save_request.cancel()
        self.saved_at = time.monotonic()
        self.save_seconds += self.saved_at - begun

    def due(self, every: int) -> bool:
        """Return whether an action that repeats every ``every`` steps is due; 0 means never."""
        return every > 0 and self.step % every == 0

    def report(self, wait: bool = False) -> bool:
        """Record the metrics of finished steps; return False if the run diverged and must end now.

        With ``wait``, wait for all dispatched steps first. Processes get the metrics of a step at
        different times, but all must end at the same training call. So after a step has diverged,
        this method returns True until every process has the metrics of that step: until it is
        called with ``wait``, or until MAX_IN_FLIGHT training calls after that step.
        """
        for metrics in self.in_flight.finished(wait) if self.diverged is None else ():
            rates = metrics.tokens_per_second, metrics.mfu
            self.heartbeat.progress(metrics.step, metrics.loss, *rates, memory)
            self.watchdog.step_finished()
            if self.metrics:
                self.metrics.write(self.with_waits(metrics))
                self.log_step(metrics)
            if not metrics.finite:
                log.error(
                    "step %d: loss, gradient or parameters are not finite; the state is not saved. "
                    "Try a lower optimizer.learning_rate or a longer optimizer.warmup",
                    metrics.step,
                )
                self.diverged = metrics.step
                break
        if self.diverged is None:
            return True
        step_reported_by_all = self.diverged + MAX_IN_FLIGHT * self.cfg.compute.steps_per_call
        return not wait and self.step < step_reported_by_all

    def with_waits(self, metrics: Metrics) -> Metrics:
        """Return a step's metrics, with ``start_seconds`` and ``save_seconds`` if they apply.

        ``start_seconds`` is for the first step of an attempt, ``save_seconds`` for the first step
        after a save. Call this once for each step, in order.
        """
        if metrics.step == self.started + 1:
            metrics = replace(metrics, start_seconds=round(metrics.time - STARTED, 3))
        if self.save_seconds:
            metrics = replace(metrics, save_seconds=round(self.save_seconds, 3))
            self.save_seconds = 0.0
        return metrics

    def end_interrupted(self) -> int:
        """Save at the step that all processes agreed on, and return the exit code."""
        if not self.report(wait=True):
            return self.end("nan", NOT_A_NUMBER)
        self.watchdog.step_finished()
        self.save(wait=True)
        self.log("interrupted: saved at step %d", self.step)
        return self.end("interrupted", INTERRUPTED)

    def end(self, state: str, code: int) -> int:
        """Close everything, record the final state in the heartbeat, and return the exit code."""
        self.tracer.close(self.step, self.state)
        self.heartbeat.write(state)
        # A run that diverges may end while a save is in progress.
        with logged_errors(f"{self.contract.checkpoints}: the last save failed"):
            self.checkpoints.close()
        self.watchdog.off()
        if self.metrics:
            self.metrics.close()
        return code

    def sample(self) -> None:
        """Generate text; process 0 logs it, and after the last step also writes it to SAMPLE.

        All processes must call this, because each holds only its shard of the parameters. Errors,
        such as out of memory, are only logged, so that they do not end the training.
        """
        if not self.cfg.sample.length:
            return
        self.watchdog.step_finished()
        with logged_errors(f"step {self.step}: the sample failed, which does not end the run"):
            text = generate(self.state["params"], self.cfg, self.corpus.tokenizer, SAMPLE_SECONDS)
            if self.is_first:
                log.info("sample at step %d:\n%s", self.step, text)
                if self.step >= self.cfg.steps:
                    write_atomically(self.contract.run_dir / SAMPLE, text + "\n")

    def log(self, message: str, *values: Any) -> None:
        """Log a line that begins with the run's name."""
        log.info("%s: " + message, self.contract.run, *values)

    def log_start(self) -> None:
        """Log the run's processes, devices, parameters, corpus and first step."""
        parameters = sum(a.size for a in jax.tree.leaves(self.state["params"]))
        self.log(
            "process %d of %d, %d %s device(s), %d parameters, %s, from step %d of %d",
            jax.process_index(),
            jax.process_count(),
            jax.device_count(),
            jax.default_backend(),
            parameters,
            self.corpus.name,
            self.step,
            self.cfg.steps,
        )

    def log_step(self, metrics: Metrics) -> None:
        """Log the loss every ``log_every`` steps, at the attempt's first step and the run's last.

        Also log the held-out loss if it was evaluated at this step.
        """
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
