"""Faults on demand: what the cloud is told to get wrong. They end with the server.

Whether and how a fault strikes depends on nothing but what was asked for and the number of calls
since then: the same calls in the same order meet the same faults.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from localcloud.api.errors import ApiError, rate_limited
from localcloud.api.fault_message import KINDS, Fault, read_faults

# What a mix does to a call besides the codes it was given.
DROP_BEFORE, DROP_AFTER = "before", "after"


@dataclass(frozen=True)
class Stroke:
    """What a call meets: a delay in seconds, an error, a connection that drops."""

    delay: float = 0.0
    error: ApiError | None = None
    drop: str = ""


@dataclass
class _Standing:
    """A fault in force, with what is left of it and the calls it has seen, by method."""

    fault: Fault
    left: int | None
    ends: float | None
    seen: Counter[str] = field(default_factory=Counter)

    @property
    def over(self) -> bool:
        return self.left == 0 or (self.ends is not None and time.monotonic() >= self.ends)

    def use(self) -> None:
        if self.left is not None:
            self.left -= 1


class Faults:
    """The faults in force; safe to ask and to change from several threads."""

    def __init__(self, zones: Collection[str]) -> None:
        self.methods: frozenset[str] = frozenset()
        self._zones = frozenset(zones)
        self._lock = threading.Lock()
        self._unreachable: frozenset[str] = frozenset()
        self._standing: dict[str, list[_Standing]] = {kind: [] for kind in KINDS}

    def change(self, wanted: Mapping[str, Any], *, add: bool = False) -> None:
        """Put faults in force: each key given replaces what stood under it, or adds to it.

        ``{"unreachable": [zone, …]}`` and the kinds of ``fault_message``; an empty list clears.
        Raises a 400, and changes nothing, for what it doesn't know.
        """
        unreachable, faults = read_faults(wanted, self._zones, self.methods)
        now = time.monotonic()
        with self._lock:
            if unreachable is not None:
                self._unreachable = frozenset(unreachable) | (self._unreachable if add else set())
            for kind, entries in faults.items():
                standing = [
                    _Standing(it, it.times, now + it.for_seconds if it.for_seconds else None)
                    for it in entries
                ]
                self._standing[kind] = [*(self._standing[kind] if add else ()), *standing]

    def unreachable(self) -> frozenset[str]:
        """Give the zones that cannot be reached now."""
        with self._lock:
            return self._unreachable

    def strike(self, method: str, zone: str) -> Stroke:
        """Tell what this call meets, and count it."""
        with self._lock:
            slow = [self._take(it) for it in self._hit("latency", method, zone)]
            delay = sum(float(fault.details["delaySeconds"]) for fault in slow)
            for standing in self._hit("errors", method, zone)[:1]:
                return Stroke(delay, _error(method, self._take(standing).details["code"]))
            for standing in self._hit("drops", method, zone)[:1]:
                return Stroke(delay, drop=self._take(standing).details["when"])
            for standing in self._hit("mix", method, zone)[:1]:
                return replace(_drawn(standing, method), delay=delay)
            return Stroke(delay)

    def outcome(self, method: str, zone: str) -> Mapping[str, str] | None:
        """Give the error that the operation of this call ends with; None for none."""
        with self._lock:
            for standing in self._hit("outcomes", method, zone)[:1]:
                said = self._take(standing).details
                asked = f"A fault was asked for: {method} ends with {said['code']}"
                return {"code": said["code"], "message": said["message"] or asked}
        return None

    def _hit(self, kind: str, method: str, zone: str) -> list[_Standing]:
        """Give the faults of a kind that mean this call; the local cloud's own only by name."""
        return [
            it
            for it in self._standing[kind]
            if not it.over
            and it.fault.zone in ("", zone)
            and (it.fault.method == method or (meant_by_star(method) and it.fault.means(method)))
        ]

    @staticmethod
    def _take(standing: _Standing) -> Fault:
        standing.use()
        return standing.fault

    def shortage(self, zone: str, accelerator: str, *, count: bool = False) -> str:
        """Say why a zone has no capacity for an accelerator type now; "" if it has.

        With ``count`` this is one of the times that the fault was asked for.
        """
        with self._lock:
            for standing in self._standing["capacity"]:
                fault = standing.fault
                meant = fnmatchcase(accelerator, fault.details["acceleratorType"])
                if meant and fault.zone in ("", zone) and not standing.over:
                    if count:
                        standing.use()
                    return f"a shortage of {accelerator} was asked for"
        return ""

    def reuses_addresses(self, zone: str) -> bool:
        """Tell whether a new node gets the addresses released last, and count it."""
        with self._lock:
            for standing in self._standing["reuse"]:
                if standing.fault.zone in ("", zone) and not standing.over:
                    standing.use()
                    return True
        return False

    def lateness(self, worker: str, zone: str) -> float:
        """Give the seconds that a worker, such as ``pod-w1``, boots late now, and count it."""
        with self._lock:
            for standing in self._standing["late"]:
                fault = standing.fault
                meant = fnmatchcase(worker, fault.details["worker"])
                if meant and fault.zone in ("", zone) and not standing.over:
                    standing.use()
                    return float(fault.details["delaySeconds"])
        return 0.0

    def clear(self) -> None:
        """End all that is in force."""
        with self._lock:
            self._unreachable = frozenset()
            self._standing = {kind: [] for kind in KINDS}

    def quotas(self) -> Sequence[Fault]:
        """Give the limits in force: ``chips``, and whose they are."""
        with self._lock:
            return [it.fault for it in self._standing["quota"] if not it.over]

    def show(self) -> dict[str, Any]:
        """Give what is in force, in the words of ``change``."""
        with self._lock:
            shown = {
                kind: [it.fault.show(it.left) for it in standing if not it.over]
                for kind, standing in self._standing.items()
            }
            return {"unreachable": sorted(self._unreachable), **shown}


def meant_by_star(method: str) -> bool:
    """Tell whether a method is Google's: a pattern never means the local cloud's own."""
    return not method.startswith(("localcloud.", "oauth2."))


def _error(method: str, code: int) -> ApiError:
    message = f"A fault was asked for: {method} answers {code}"
    return rate_limited(message) if code == 429 else ApiError(code, message)


def _drawn(standing: _Standing, method: str) -> Stroke:
    """Draw what the next call of a method meets, by the mix's seed."""
    details = standing.fault.details
    number = standing.seen[method]
    standing.seen[method] += 1
    standing.use()
    chance = random.Random(f"{details['seed']}/{method}/{number}")  # noqa: S311 - reproducible
    if chance.random() >= details["share"]:
        return Stroke()
    drops = [DROP_BEFORE, DROP_AFTER] if details["drops"] else []
    lot = chance.choice([*details["codes"], *drops])
    return Stroke(drop=lot) if isinstance(lot, str) else Stroke(error=_error(method, lot))
