"""Background jobs in threads, one at a time per node or queued resource."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from localcloud.machines.interface import MachineError


class StoppingError(Exception):
    """The server is stopping; the next one resumes unfinished jobs."""


class Subject(Protocol):
    """The subject of a job, with its id."""

    @property
    def uid(self) -> int:
        """The id of the node or queued resource."""


class Jobs:
    """Runs jobs in the background, on at most ``parallel`` machines at once."""

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
        """Start a job, which runs after earlier jobs of the same subject.

        ``changed`` is called after its start and its end.
        """

        def job() -> None:
            try:
                with self.alone(subject.uid):
                    work(subject)
            except StoppingError:
                self._log.info("stopped, resumes at the next start: %s", subject)
            except Exception:
                self._log.exception("a job failed: %s", subject)
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
    def alone(self, uid: int) -> Iterator[None]:
        """Wait for the jobs of a subject and exclude others."""
        with self._guard:
            lock = self._locks[uid]
        with lock:
            yield

    def each[Item](
        self, items: Sequence[Item], verb: Callable[[Item], None], *, give_up: bool
    ) -> list[str]:
        """Call ``verb`` for each item, several at once; return the errors.

        With ``give_up``, start no further item after a failure. Raises StoppingError if the server
        stops before all items were started.
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
                        verb(item)
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
        if waiting and not failures:
            raise StoppingError
        return failures

    def pause(self, seconds: float) -> None:
        """Sleep inside a job; raise StoppingError if the server stops."""
        if self._stopping.wait(seconds):
            raise StoppingError

    def stop(self, grace_s: float) -> bool:
        """Start no new items and wait up to ``grace_s`` for running jobs.

        Return whether all jobs have ended or stopped where the next server can resume.
        """
        self._stopping.set()
        with self._guard:
            jobs = tuple(self._jobs)
        for job in jobs:
            job.join(grace_s / max(1, len(jobs)))
        return not any(job.is_alive() for job in jobs)
