"""Work that takes longer than a request: in threads, one job a subject at a time."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from localcloud.machines.seam import MachineError


class StoppingError(Exception):
    """The server is stopping: what is unfinished stays written down for the next one."""


class Subject(Protocol):
    """What a job is about, by its number."""

    @property
    def uid(self) -> int:
        """The number of the node or queued resource."""


class Jobs:
    """Runs jobs in the background; ``hands`` bounds how many machines are worked on at once."""

    def __init__(self, log: logging.Logger, hands: int) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._log = log
        self._hand_count = hands
        self._hands = threading.Semaphore(hands)
        self._stopping = threading.Event()
        self._jobs: set[threading.Thread] = set()
        self._guard = threading.Lock()
        self._locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)

    def begin(self, work: Callable[[Any], None], subject: Subject) -> None:
        """Do the work in the background, after what is under way for the same subject.

        ``changed`` is called when it has begun and when it has ended, however it did.
        """

        def job() -> None:
            try:
                with self.alone(subject.uid):
                    work(subject)
            except StoppingError:
                self._log.info("left for the next start: %s", subject)
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
        """Wait for the jobs of a subject and keep others from it."""
        with self._guard:
            lock = self._locks[uid]
        with lock:
            yield

    def each[Item](
        self, items: Sequence[Item], verb: Callable[[Item], None], *, give_up: bool
    ) -> list[str]:
        """Do one thing to each item, several at once; give what went wrong.

        With ``give_up`` no further item is begun after a failure. Raises StoppingError if
        the server stops before all were begun.
        """
        waiting = list(reversed(items))
        failures: list[str] = []

        def hand() -> None:
            while not (self._stopping.is_set() or (give_up and failures)):
                with self._hands:
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

        count = min(self._hand_count, len(items))
        hands = [threading.Thread(target=hand, daemon=True) for _ in range(count)]
        for thread in hands:
            thread.start()
        for thread in hands:
            thread.join()
        if waiting and not failures:
            raise StoppingError
        return failures

    def pause(self, seconds: float) -> None:
        """Wait in the middle of a job; raises StoppingError if the server stops."""
        if self._stopping.wait(seconds):
            raise StoppingError

    def stop(self, patience: float) -> bool:
        """Begin no new work on items; wait up to ``patience`` seconds for what is under way.

        Tells whether everything under way came to its end or to a resting point.
        """
        self._stopping.set()
        with self._guard:
            jobs = tuple(self._jobs)
        for job in jobs:
            job.join(patience / max(1, len(jobs)))
        return not any(job.is_alive() for job in jobs)
