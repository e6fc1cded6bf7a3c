"""Traces by jax.profiler, for TensorBoard's profile page, XProf or Perfetto."""

import logging
from pathlib import Path
from typing import Any

import jax

from train.core.config import ProfileConfig
from train.storage import logged_errors

log = logging.getLogger(__name__)

REQUEST_FILE = "profile"
"""A file of this name in the run directory requests a trace. The tracer removes the file."""


class Tracer:
    """Profiler that traces this process's devices into ``profiles/`` of its run directory.

    Failures never stop the run.
    """

    def __init__(self, run_dir: Path, cfg: ProfileConfig, step: int) -> None:
        """Prepare the traces of an attempt that resumes from ``step``.

        The trace that ``cfg`` requests is skipped if it would start before ``step``.
        """
        self._run_dir, self._cfg, self._first_step = run_dir, cfg, step
        self._until: int | None = None

    def before(self, step: int, state: dict[str, Any]) -> None:
        """Start or stop a trace if due. Call this before each training call.

        ``state`` is the state after ``step`` steps. Starting or stopping a trace waits until the
        device has computed this state, so that the trace contains exactly the configured steps.
        """
        if self._until is not None:
            if step >= self._until:
                self._stop(step, state)
        elif self._due(step) or self._is_requested():
            self._start(step, state)

    def close(self, step: int, state: dict[str, Any]) -> None:
        """Stop a trace that is still running; ``state`` is the state after ``step`` steps."""
        if self._until is not None:
            self._stop(step, state)

    def _due(self, step: int) -> bool:
        is_due = self._first_step <= self._cfg.at <= step and self._cfg.at > 0
        if is_due:
            self._first_step = step + 1
        return is_due

    def _is_requested(self) -> bool:
        request = self._run_dir / REQUEST_FILE
        if not request.exists():
            return False
        try:
            request.unlink()
        except OSError as err:
            log.warning("%s: cannot be removed, so no trace starts: %s", request, err.strerror)
            return False
        return True

    def _start(self, step: int, state: dict[str, Any]) -> None:
        directory = self._run_dir / "profiles" / f"step-{step}"
        with logged_errors(f"no trace at step {step}"):
            jax.block_until_ready(state["step"])
            jax.profiler.start_trace(directory)
            self._until = step + self._cfg.steps
            log.info("tracing steps %d to %d into %s", step + 1, self._until, directory)

    def _stop(self, step: int, state: dict[str, Any]) -> None:
        self._until = None
        with logged_errors(f"the trace up to step {step} is lost"):
            jax.block_until_ready(state["step"])
            jax.profiler.stop_trace()
            log.info("traced up to step %d", step)
