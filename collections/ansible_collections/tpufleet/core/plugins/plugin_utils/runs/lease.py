"""Leases: only one controller at a time acts on a TPU and its runs.

A lease is a JSON document beside the run records; every change is a compare-and-swap. The holder
renews the lease regularly. The clocks of controllers may differ. Therefore another controller may
take the lease only MAX_SKEW_S seconds after the end that the document states, and the holder
measures the time since its last renewal with a monotonic clock.

If clocks differ by more than MAX_SKEW_S, two controllers may hold the lease. Therefore each holder
has a fencing number, greater than those of all earlier holders. The holder writes the number to the
run's record before it acts, and passes the number to each playbook. A playbook fails if the record
has a greater number: kill.yml, delete.yml and create.yml check right before they stop the run or
delete a TPU, train.yml checks by compare-and-swap before it starts an attempt. What a playbook did
earlier is not undone. Deleting an idle TPU belongs to no run and therefore uses no fencing number,
only the lease, the TPU's id and the fleet's label.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .record_error import RecordConflictError, RecordError

if TYPE_CHECKING:
    from .record_store import RecordStore

LEASE_S, RENEW_EVERY_S = 90.0, 20.0
MAX_SKEW_S = 60.0
"""How much the clocks of two controllers may differ, in seconds."""
HOLDER = re.compile(r"[A-Za-z0-9_.:-]{1,300}")


def seconds_since_boot() -> float:
    """Return monotonic seconds; on Linux they include the time in which the computer sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseHeldError(RecordError):
    """Another controller holds the lease; the message names that controller."""


@dataclass(frozen=True)
class _Document:
    """A lease as stored. ``until`` is when it ends, in unix seconds; 0 if it was released.

    ``generation`` is increased by each change.
    """

    holder: str = ""
    until: float = 0.0
    generation: int = 0

    @classmethod
    def parse(cls, name: str, value: object) -> _Document:
        if value == {}:
            return cls()
        fields = value if isinstance(value, Mapping) else {}
        holder, until = fields.get("holder"), fields.get("until")
        generation = fields.get("generation")
        if (
            not (isinstance(holder, str) and HOLDER.fullmatch(holder))
            or not (isinstance(until, int | float) and 0 <= until < 1e12)
            or type(generation) is not int
        ):
            raise RecordError(
                f"lease {name}: its file is invalid. Remove watch/runs/{name}.json from fleet_state"
            )
        return cls(holder, float(until), generation)


class Leases:
    """The leases of one ``fleet_state``, so that only one controller at a time acts on a run.

    Args:
        documents: the store of the leases' documents.
        clock: unix time in seconds, which other controllers compare with theirs.
        monotonic: seconds that never go backwards.
    """

    def __init__(
        self,
        documents: RecordStore,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = seconds_since_boot,
    ) -> None:
        self.documents, self.clock, self.monotonic = documents, clock, monotonic

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[Lease]:
        """Acquire a lease, renew it in a thread during a ``with`` block, and release it.

        Raises LeaseHeldError if another controller holds it, RecordError for other failures.
        """
        lease = self.acquire(name)
        stop = threading.Event()
        thread = threading.Thread(target=lease.keep_renewing, args=(stop,), daemon=True)
        thread.start()
        try:
            yield lease
        finally:
            stop.set()
            thread.join(RENEW_EVERY_S)
            lease.release()

    def acquire(self, name: str) -> Lease:
        """Acquire a lease that is free or has expired.

        Raises LeaseHeldError if another controller holds the lease. Raises RecordError if the lease
        ends more than LEASE_S + MAX_SKEW_S from now, because it could block its TPU for long.
        """
        document = _Document.parse(name, self.documents.read(name))
        remaining = document.until - self.clock()
        if remaining > LEASE_S + MAX_SKEW_S:
            raise RecordError(
                f"lease {name}: ends in {remaining:.0f} s (expected at most "
                f"{LEASE_S + MAX_SKEW_S:.0f} s). Correct the clock of this controller or of "
                f"{_without_token(document.holder)}. If both clocks are right and the holder has "
                f"ended, remove watch/runs/{name}.json from fleet_state"
            )
        if document.until and document.until + MAX_SKEW_S > self.clock():
            raise _held_by(name, document.holder)
        lease = Lease(self, name, document.generation)
        try:
            lease.renew()
        except RecordConflictError:
            raise _held_by(name, "another controller") from None
        return lease


class Lease:
    """A lease of this process. ``fence`` is its fencing number, greater than all earlier ones.

    ``generation`` is the generation of the stored document that this lease replaces.
    """

    def __init__(self, leases: Leases, name: str, generation: int) -> None:
        self.name = name
        self.fence = generation + 1
        self._leases, self._generation = leases, generation
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._valid_until = 0.0
        self._is_taken = False

    def lost(self) -> str:
        """Return why this process has lost the lease; empty while it holds the lease."""
        if self._is_taken:
            return f"another controller took the lease {self.name}"
        overdue = self._leases.monotonic() - self._valid_until
        return f"the lease {self.name} could not be renewed in time" if overdue >= 0 else ""

    def renew(self) -> None:
        """Extend the lease, so that it ends LEASE_S seconds from now.

        Raises RecordConflictError if another process has changed the stored document, and
        RecordError if the document cannot be read or written.
        """
        began_at = self._leases.monotonic()
        self._write(self._leases.clock() + LEASE_S)
        self._valid_until = began_at + LEASE_S

    def release(self) -> None:
        """Free the lease for other controllers, unless this process has lost it."""
        with contextlib.suppress(RecordError):
            if not self.lost():
                self._write(0)

    def keep_renewing(self, stop: threading.Event) -> None:
        """Renew the lease regularly until ``stop`` is set or the lease is lost; retry failures."""
        while not stop.wait(RENEW_EVERY_S) and not self.lost():
            try:
                self.renew()
            except RecordConflictError:
                self._read_holder()
            except RecordError:
                continue

    def _read_holder(self) -> None:
        """Read who holds the lease now, after a RecordConflictError.

        This process may still be the holder: the conflict also occurs if it has renewed the lease
        but the response was lost.
        """
        with contextlib.suppress(RecordError):
            document = _Document.parse(self.name, self._leases.documents.read(self.name))
            self._is_taken = document.holder != self._holder
            self._generation = document.generation

    def _write(self, until: float) -> None:
        fields: dict[str, Any] = {"holder": self._holder, "until": until}
        written = self._leases.documents.change(self.name, self._generation, fields, {})
        self._generation = _Document.parse(self.name, written).generation


def _without_token(holder: str) -> str:
    """Return ``HOST:PID`` of a lease's holder, which is stored as ``HOST:PID:TOKEN``."""
    return holder.rpartition(":")[0] or holder


def _held_by(name: str, holder: str) -> LeaseHeldError:
    return LeaseHeldError(
        f"{name}: {_without_token(holder)} is acting on it. Wait until its playbook has ended, "
        "then run yours again. If that process died, its lease expires within "
        f"{LEASE_S + MAX_SKEW_S:.0f} s"
    )


@dataclass(frozen=True)
class Claim:
    """The right of this process to act on a run or a TPU.

    ``lost`` and ``blocker`` return why the right is lost; empty if it is not lost.

    Args:
        lost: called twice a second while a playbook runs, so it must not use the network.
        blocker: called immediately before each playbook, to check the run or the TPU again.
    """

    lost: Callable[[], str]
    blocker: Callable[[], str]


def lease_name(tpu: str) -> str:
    """Return the name of the lease on a TPU and all its runs. ``tpu`` is the TPU's name."""
    return f"runs-of-{tpu}"
