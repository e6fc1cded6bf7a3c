"""A trace of some steps by jax.profiler: for TensorBoard's profile page, XProf or Perfetto."""

import logging
from pathlib import Path
from typing import Any

import jax

from train.config import ProfileConfig

log = logging.getLogger(__name__)

WISH = "profile"
"""A file of this name in the run directory asks for a trace now; it is removed as that begins."""


class Tracer:
    """Traces a process's own devices into ``profiles/`` of its run directory.

    It may be asked for at any step, and what goes wrong with it never stops the run.
    """

    def __init__(self, run_dir: Path, cfg: ProfileConfig, step: int) -> None:
        """``step`` is where the attempt begins: a trace that was due before is not made again."""
        self._run_dir, self._cfg, self._begun = run_dir, cfg, step
        self._until: int | None = None

    def before(self, step: int, state: dict[str, Any]) -> None:
        """Begin or end a trace, if it is time; to be called before each call's steps.

        ``state`` is waited for, so that a trace holds its steps whole and no others.
        """
        if self._until is not None:
            if step >= self._until:
                self._stop(step, state)
        elif self._due(step) or self._wished():
            self._start(step, state)

    def close(self, step: int, state: dict[str, Any]) -> None:
        """End a trace that the run's end cuts short."""
        if self._until is not None:
            self._stop(step, state)

    def _due(self, step: int) -> bool:
        due = self._begun <= self._cfg.at <= step and self._cfg.at > 0
        if due:
            self._begun = step + 1
        return due

    def _wished(self) -> bool:
        wish = self._run_dir / WISH
        if not wish.exists():
            return False
        try:
            wish.unlink()
        except OSError as err:
            log.warning("%s: cannot be removed, so no trace: %s", wish, err.strerror)
            return False
        return True

    def _start(self, step: int, state: dict[str, Any]) -> None:
        place = self._run_dir / "profiles" / f"step-{step}"
        try:
            jax.block_until_ready(state["step"])
            jax.profiler.start_trace(place)
        except Exception as err:  # the profiler's own, which differ by device
            log.warning("no trace at step %d: %s", step, " ".join(str(err).split()))
            return
        self._until = step + self._cfg.steps
        log.info("tracing steps %d to %d into %s", step + 1, self._until, place)

    def _stop(self, step: int, state: dict[str, Any]) -> None:
        self._until = None
        try:
            jax.block_until_ready(state["step"])
            jax.profiler.stop_trace()
            log.info("traced up to step %d", step)
        except Exception as err:  # as above; also a full disk
            log.warning("the trace up to step %d is lost: %s", step, " ".join(str(err).split()))
