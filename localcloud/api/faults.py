"""Faults on demand: what the cloud is told to get wrong. They end with the server."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api.errors import HTTP_STATUS, ApiError, invalid


@dataclass(frozen=True)
class ErrorFault:
    """The next ``times`` calls of ``method`` (in ``zone``, or in any) answer ``code``."""

    method: str
    code: int
    times: int
    zone: str = ""

    def hits(self, method: str, zone: str) -> bool:
        """Tell whether a call is one that this fault means."""
        return self.times > 0 and self.method == method and self.zone in ("", zone)


class Faults:
    """The faults in force; safe to ask and to change from several threads."""

    def __init__(self, zones: Collection[str]) -> None:
        self.methods: frozenset[str] = frozenset()
        self._zones = frozenset(zones)
        self._lock = threading.Lock()
        self._unreachable: frozenset[str] = frozenset()
        self._errors: tuple[ErrorFault, ...] = ()

    def change(self, wanted: Mapping[str, Any]) -> None:
        """Put faults in force: each key given replaces what stood under it.

        ``{"unreachable": [zone, …], "errors": [{"method", "code", "times", "zone"}, …]}``;
        an empty list clears. Raises a 400, and changes nothing, for what it doesn't know.
        """
        for key in wanted:
            if key not in ("unreachable", "errors"):
                raise invalid(key, f'Unknown fault "{key}": there are unreachable, errors')
        zones = _list(wanted, "unreachable")
        for zone in zones:
            self._known_zone(zone)
        errors = tuple(self._error(entry) for entry in _list(wanted, "errors"))
        with self._lock:
            if "unreachable" in wanted:
                self._unreachable = frozenset(zones)
            if "errors" in wanted:
                self._errors = errors

    def _error(self, entry: Any) -> ErrorFault:
        try:
            fault = ErrorFault(**entry)
        except TypeError:
            raise invalid("errors", f"{entry!r} is not {{method, code, times[, zone]}}") from None
        if str(fault.method) not in self.methods:
            known = ", ".join(sorted(self.methods))
            raise invalid("errors", f'Unknown method "{fault.method}": there are {known}')
        if not isinstance(fault.code, int) or fault.code not in HTTP_STATUS:
            known = ", ".join(map(str, HTTP_STATUS))
            raise invalid("errors", f"code {fault.code!r} is none of {known}")
        if not isinstance(fault.times, int) or fault.times < 0:
            raise invalid("errors", f"times is {fault.times!r}, not a number of calls")
        if fault.zone:
            self._known_zone(fault.zone)
        return fault

    def _known_zone(self, zone: Any) -> None:
        if str(zone) not in self._zones:
            known = ", ".join(sorted(self._zones))
            raise invalid("zone", f'Unknown zone "{zone}": there are {known}')

    def unreachable(self) -> frozenset[str]:
        """Give the zones that cannot be reached now."""
        with self._lock:
            return self._unreachable

    def shortage(self, zone: str, accelerator: str) -> str:
        """Say why a zone has no capacity for an accelerator type now; "" if it has."""
        return ""

    def strike(self, method: str, zone: str) -> None:
        """Raise the error that is due for this call, if one is, and count it."""
        with self._lock:
            for index, fault in enumerate(self._errors):
                if fault.hits(method, zone):
                    rest = ErrorFault(fault.method, fault.code, fault.times - 1, fault.zone)
                    self._errors = (*self._errors[:index], rest, *self._errors[index + 1 :])
                    raise ApiError(
                        fault.code, f"A fault was asked for: {method} answers {fault.code}"
                    )

    def show(self) -> dict[str, Any]:
        """Give what is in force, in the words of ``change``."""
        with self._lock:
            return {
                "unreachable": sorted(self._unreachable),
                "errors": [vars(fault) for fault in self._errors if fault.times],
            }


def _list(wanted: Mapping[str, Any], key: str) -> list[Any]:
    value = wanted.get(key, [])
    if not isinstance(value, list):
        raise invalid(key, f"{key} is {value!r}, not a list")
    return value
