"""Background work: jobs, one at a time per node or queued resource, and the reconcile loop."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from localcloud.api.node_table import Node
from localcloud.api.operation_table import Operation
from localcloud.machines.interface import MachineError

AFTER_AN_ERROR_S = 5.0
# A step of the reconcile loop: a function that returns after how many seconds the loop must call it
# again, or None to be called only after the next ``wake``.
Step = Callable[[], float | None]


class StoppingError(Exception):
    """Raised in jobs when the server stops; the next server resumes unfinished jobs."""


# What a job works on: a node, or an operation on a node.
type Subject = Node | Operation


class Jobs:
    """Runner of background jobs, which work on at most ``parallel`` machines at once."""

    def __init__(self, log: logging.Logger, parallel: int) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._log = log
        self._parallel = parallel
        self._slots = threading.Semaphore(parallel)
        self._stopping = threading.Event()
        self._jobs: set[threading.Thread] = set()
        self._guard = threading.Lock()
        self._locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)

    def begin(self, work: Callable[[Any], None], subject: Subject) -> None:
        """Run ``work(subject)`` in the background, after earlier jobs of the same subject.

        ``self.changed`` is called after the start and after the end of the job.
        """

        def job() -> None:
            try:
                with self.locked(subject.uid):
                    work(subject)
            except StoppingError:
                self._log.info("a job has stopped and resumes at the next start: %s", subject)
            except Exception:
                self._log.exception("a job has failed: %s", subject)
            finally:
                with self._guard:
                    self._jobs.discard(threading.current_thread())
                self.changed()

        thread = threading.Thread(target=job, name=f"{work.__name__}-{subject.uid}", daemon=True)
        with self._guard:
            self._jobs.add(thread)
        thread.start()
        self.changed()

    @contextmanager
    def locked(self, uid: int) -> Iterator[None]:
        """Keep jobs of the subject ``uid`` from running in the ``with`` block.

        Waits first until the job of this subject that is running, if any, has ended.
        """
        with self._guard:
            lock = self._locks[uid]
        with lock:
            yield

    def run_each[Item](
        self, items: Sequence[Item], action: Callable[[Item], None], *, give_up: bool
    ) -> list[str]:
        """Call ``action`` for each item, in parallel; return the error messages.

        No call begins after the server stops or, with ``give_up``, after a failure. Raises
        StoppingError if the server stops while items remain, unless ``give_up`` has already ended
        the calls.
        """
        waiting = list(reversed(items))
        failures: list[str] = []

        def work() -> None:
            while not (self._stopping.is_set() or (give_up and failures)):
                with self._slots:
                    try:
                        item = waiting.pop()
                    except IndexError:
                        return
                    try:
                        action(item)
                    except StoppingError:
                        waiting.append(item)
                        return
                    except MachineError as error:
                        failures.append(str(error))
                    except Exception as error:
                        self._log.exception("%s", item)
                        failures.append(f"{item}: {type(error).__name__}: {error}")

        count = min(self._parallel, len(items))
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if waiting and not (give_up and failures):
            raise StoppingError
        return failures

    def pause(self, seconds: float) -> None:
        """Sleep in a job; raise StoppingError if the server stops."""
        if self._stopping.wait(seconds):
            raise StoppingError

    def stop(self, grace_s: float) -> bool:
        """Stop all jobs; wait up to ``grace_s`` seconds for the steps that they have begun.

        Returns whether every job has ended. The next server resumes unfinished jobs.
        """
        self._stopping.set()
        with self._guard:
            jobs = tuple(self._jobs)
        for job in jobs:
            job.join(grace_s / max(1, len(jobs)))
        return not any(job.is_alive() for job in jobs)


class ReconcileLoop:
    """A thread that runs all ``steps`` after each ``wake`` and whenever one of them is due.

    Each step returns the seconds until it is due again; None: only after ``wake``.
    """

    def __init__(self, steps: Sequence[Step], log: logging.Logger) -> None:
        self._steps = tuple(steps)
        self._log = log
        self._wakeup = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="reconcile", daemon=True)

    def start(self) -> None:
        """Start the thread; it immediately runs all steps once."""
        self._thread.start()

    def wake(self) -> None:
        """Make the thread run all steps; call it after a change."""
        self._wakeup.set()

    def stop(self) -> None:
        """Stop the thread; wait until the steps in progress are finished."""
        self._stopping = True
        self._wakeup.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wakeup.clear()
            waits = [wait for step in self._steps if (wait := self._run_step(step)) is not None]
            self._wakeup.wait(max(0.01, min(waits)) if waits else None)

    def _run_step(self, step: Step) -> float | None:
        try:
            return step()
        except Exception:
            self._log.exception("a step of the reconcile loop failed; the loop tries it again")
            return AFTER_AN_ERROR_S
