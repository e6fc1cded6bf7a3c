"""The active faults of the API, held in memory: they end when the server stops.

Faults are reproducible: the same faults and the same calls in the same order have the same effects.
Only ``forSeconds``, the duration of a fault, depends on the clock.
"""

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from localcloud.api.errors import ApiError, rate_limited
from localcloud.api.fault_message import KINDS, Fault, read_faults

# When a drop closes the connection: before or after the call takes effect.
DROP_BEFORE, DROP_AFTER = "before", "after"


@dataclass(frozen=True)
class Effect:
    """Effect of the active faults on a call: a delay in seconds, and an error, a drop or neither.

    A drop (DROP_BEFORE or DROP_AFTER) closes the connection without a response.
    """

    delay: float = 0.0
    error: ApiError | None = None
    drop: str = ""


class Faults:
    """Thread-safe container of the active faults."""

    def __init__(self) -> None:
        self.methods: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._unreachable: frozenset[str] = frozenset()
        self._active: dict[str, list[Fault]] = {kind: [] for kind in KINDS}

    def change(self, request: Mapping[str, Any], *, add: bool) -> None:
        """Replace the active faults of each kind in ``request``; with ``add``, add to them instead.

        ``request`` has lists of faults by kind (see ``fault_message``) and a list of zones as
        ``unreachable``. Without ``add``, an empty list ends the faults of a kind. Raises HTTP 400
        and changes no fault if any part of ``request`` is invalid.
        """
        unreachable, faults = read_faults(request, self.methods)
        with self._lock:
            if unreachable is not None:
                self._unreachable = frozenset(unreachable) | (self._unreachable if add else set())
            for kind, entries in faults.items():
                self._active[kind] = [*(self._active[kind] if add else ()), *entries]

    def unreachable(self) -> frozenset[str]:
        """Return the zones that a fault makes unreachable."""
        with self._lock:
            return self._unreachable

    def effect(self, method: str, zone: str) -> Effect:
        """Return the effect of the active faults on a call.

        Counts one occurrence of each fault that affects the call.
        """
        with self._lock:
            slow = self._matching("latency", zone, method)
            delay = sum(float(fault.use()["delaySeconds"]) for fault in slow)
            for fault in self._matching("errors", zone, method)[:1]:
                return Effect(delay, _error(method, fault.use()["code"]))
            for fault in self._matching("drops", zone, method)[:1]:
                return Effect(delay, drop=fault.use()["when"])
            for fault in self._matching("mix", zone, method)[:1]:
                return replace(_draw_effect(fault, method), delay=delay)
            return Effect(delay)

    def outcome(self, method: str, zone: str) -> Mapping[str, str] | None:
        """Return the error of a fault that makes a call's operation fail; None if there is none.

        Counts one occurrence of this fault.
        """
        with self._lock:
            for fault in self._matching("outcomes", zone, method)[:1]:
                details = fault.use()
                message = f"Injected fault: {method} ends with {details['code']}"
                return {"code": details["code"], "message": details["message"] or message}
        return None

    def shortage(self, zone: str, accelerator: str, *, count: bool = False) -> str:
        """Return why a zone has no capacity for an accelerator type, or "" if it has capacity.

        If ``count`` is true, a shortage counts as one occurrence of the fault that causes it.
        """
        with self._lock:
            for fault in self._matching("capacity", zone):
                if fnmatchcase(accelerator, fault.details["acceleratorType"]):
                    if count:
                        fault.use()
                    return f"injected shortage of {accelerator}"
        return ""

    def reuses_addresses(self, zone: str) -> bool:
        """Return whether a fault gives a new node the most recently released addresses.

        If so, counts one occurrence of the fault.
        """
        with self._lock:
            for fault in self._matching("reuse", zone)[:1]:
                fault.use()
                return True
        return False

    def boot_delay(self, worker: str, zone: str) -> float:
        """Return by how many seconds the boot of a worker (``pod-w1``) must be delayed.

        A delay counts as one occurrence of the fault that causes it.
        """
        with self._lock:
            for fault in self._matching("late", zone):
                if fnmatchcase(worker, fault.details["worker"]):
                    return float(fault.use()["delaySeconds"])
        return 0.0

    def _matching(self, kind: str, zone: str, method: str = "") -> list[Fault]:
        """Return the active faults of a kind that apply to a zone and, if given, to a method.

        The local cloud's own methods match only by their full name, never by a pattern.
        """

        def applies_to_method(fault: Fault) -> bool:
            if fault.method == method:
                return True
            return _is_googles(method) and fnmatchcase(method, fault.method)

        in_zone = [fault for fault in self._active[kind] if fault.zone in ("", zone)]
        return [fault for fault in in_zone if not fault.is_over and applies_to_method(fault)]

    def clear(self) -> None:
        """End all faults."""
        with self._lock:
            self._unreachable = frozenset()
            self._active = {kind: [] for kind in KINDS}

    def quotas(self) -> Sequence[Fault]:
        """Return the active faults that limit quotas."""
        with self._lock:
            return [fault for fault in self._active["quota"] if not fault.is_over]

    def show(self) -> dict[str, Any]:
        """Return the active faults in the format that ``change`` accepts."""
        with self._lock:
            faults = {
                kind: [fault.show() for fault in active if not fault.is_over]
                for kind, active in self._active.items()
            }
            return {"unreachable": sorted(self._unreachable), **faults}


def _is_googles(method: str) -> bool:
    """Return whether a method is Google's; the local cloud's own and the token method are not."""
    return not method.startswith(("localcloud.", "oauth2."))


def _error(method: str, code: int) -> ApiError:
    message = f"Injected fault: {method} answers {code}"
    return rate_limited(message) if code == 429 else ApiError(code, message)


def _draw_effect(fault: Fault, method: str) -> Effect:
    """Return the effect of a ``mix`` fault on a call: random, but the same for the same seed."""
    details = fault.use()
    number = fault.draws[method]
    fault.draws[method] += 1
    rng = random.Random(f"{details['seed']}/{method}/{number}")  # noqa: S311 - must be reproducible, not secret
    if rng.random() >= details["share"]:
        return Effect()
    drops = [DROP_BEFORE, DROP_AFTER] if details["drops"] else []
    choice = rng.choice([*details["codes"], *drops])
    return Effect(drop=choice) if isinstance(choice, str) else Effect(error=_error(method, choice))
