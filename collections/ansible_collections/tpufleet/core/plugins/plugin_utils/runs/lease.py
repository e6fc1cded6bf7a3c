"""Leases: only one controller at a time acts on a TPU and its runs.

A lease is a document beside the run records that changes by compare-and-swap. Its holder renews
it. Holders and contenders may have different clocks: a contender waits MAX_SKEW_S longer than the
document says, and a holder counts the time since its last renewal by its own monotonic clock. Where
clocks differ by more, the fencing number bounds the damage: it is written to the run's record
before acting, and every destructive step compares it.
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

from .run_record import RecordConflictError, RecordError, RecordStore

if TYPE_CHECKING:
    from .record import RunRecord

LEASE_S, RENEW_EVERY_S = 90.0, 20.0
MAX_SKEW_S = 60.0
"""How much the clocks of two controllers may differ."""
HOLDER = re.compile(r"[A-Za-z0-9_.:-]{1,300}")


def seconds_since_boot() -> float:
    """Return seconds that pass while the computer sleeps, too, if the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseHeldError(RecordError):
    """Another controller has the lease; the text names it."""


@dataclass(frozen=True)
class _Document:
    """A lease as it is stored. ``until`` in unix seconds of the holder's clock, 0: released."""

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
                f"lease {name}: not a lease. Remove it from fleet_state below watch/runs"
            )
        return cls(holder, float(until), generation)


class Leases:
    """The leases of one ``fleet_state``.

    Args:
        documents: where they are stored.
        clock: unix time in seconds, which other controllers compare.
        monotonic: seconds that never go backwards.
    """

    def __init__(
        self,
        documents: RecordStore,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = seconds_since_boot,
    ) -> None:
        self._documents, self._clock, self._monotonic = documents, clock, monotonic

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[Lease]:
        """Hold a lease, renewed by a thread, and release it.

        Raises LeaseHeldError if another controller has it, RecordError.
        """
        lease = self.acquire(name)
        over = threading.Event()
        renewing = threading.Thread(target=lease.keep_renewing, args=(over,), daemon=True)
        renewing.start()
        try:
            yield lease
        finally:
            over.set()
            renewing.join(RENEW_EVERY_S)
            lease.release()

    def acquire(self, name: str) -> Lease:
        """Take a lease that is free or has run out. Raises LeaseHeldError, RecordError."""
        before = _Document.parse(name, self._documents.read(name))
        if before.until and before.until + MAX_SKEW_S > self._clock():
            raise _held_by(name, before.holder)
        lease = Lease(name, before.generation, self._documents, self._clock, self._monotonic)
        try:
            lease.renew()
        except RecordConflictError:
            raise _held_by(name, "another controller") from None
        return lease


class Lease:
    """A lease that this process holds. ``fence`` is greater than that of every earlier holder."""

    def __init__(
        self,
        name: str,
        generation: int,
        documents: RecordStore,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.name = name
        self.fence = generation + 1
        self._generation = generation
        self._documents, self._clock, self._monotonic = documents, clock, monotonic
        self._me = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._valid_until = 0.0
        self._taken = False

    def lost(self) -> str:
        """Say why this process must stop acting; empty while it holds the lease."""
        if self._taken:
            return f"another controller took the lease {self.name}"
        late = self._monotonic() - self._valid_until
        return f"the lease {self.name} could not be renewed in time" if late >= 0 else ""

    def renew(self) -> None:
        """Hold the lease for LEASE_S from now on. Raises RecordConflictError, RecordError."""
        began = self._monotonic()
        self._write(self._clock() + LEASE_S)
        self._valid_until = began + LEASE_S

    def release(self) -> None:
        """Let others have the lease at once. One that was lost is left alone."""
        with contextlib.suppress(RecordError):
            if not self.lost():
                self._write(0)

    def keep_renewing(self, over: threading.Event) -> None:
        """Renew until ``over``. A failure is tried again until the lease runs out."""
        while not over.wait(RENEW_EVERY_S) and not self.lost():
            try:
                self.renew()
            except RecordConflictError:
                self._see_who_has_it()
            except RecordError:
                continue

    def _see_who_has_it(self) -> None:
        """Continue after a renewal that was written though its answer was lost."""
        with contextlib.suppress(RecordError):
            there = _Document.parse(self.name, self._documents.read(self.name))
            self._taken = there.holder != self._me
            self._generation = there.generation

    def _write(self, until: float) -> None:
        fields: dict[str, Any] = {"holder": self._me, "until": until}
        told = self._documents.change(self.name, self._generation, fields, {})
        self._generation = _Document.parse(self.name, told).generation


def _held_by(name: str, holder: str) -> LeaseHeldError:
    host_and_pid = holder.rpartition(":")[0] or holder
    return LeaseHeldError(
        f"{name}: {host_and_pid} is acting on it. Wait until it has finished, at most "
        f"{LEASE_S + MAX_SKEW_S:.0f} s after it died"
    )


@dataclass(frozen=True)
class Claim:
    """The right to act on a run or a TPU. Each function returns why it is lost; empty if it is not.

    Args:
        lost: asked twice a second while a playbook runs, so it asks nobody else.
        blocker: asked immediately before each playbook: whether the run is still to be acted on.
    """

    lost: Callable[[], str]
    blocker: Callable[[], str]


def lease_name(record: RunRecord) -> str:
    """Return the name of the lease on a run's TPU and all its runs."""
    return lease_of_tpu(record.launch.tpu)


def lease_of_tpu(name: str) -> str:
    """Return the name of the lease on a TPU and its runs."""
    return f"runs-of-{name}"
