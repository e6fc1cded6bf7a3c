"""Kinds of faults with their fields, and the validation of requests to inject faults.

All kinds have the fields ``zone`` (default: all zones) and ``forSeconds`` (the fault's duration;
default: unlimited). Except for quota, all have ``times`` (how often the fault occurs; default:
unlimited). The first five kinds, which affect calls, have ``method``: the name of an API method,
such as ``nodes.create``, or a pattern, such as ``nodes.*`` (default: ``*``). Besides these kinds, a
request can contain ``unreachable``, a list of zones.

========  ============================================================================
errors    the call fails with the HTTP status ``code``
latency   the call is delayed by ``delaySeconds``
drops     the connection closes without a response; ``when`` is "before" or "after": whether this
          happens before or after the call takes effect
mix       a random ``share`` (such as 0.3) of the calls fails. A failing call has a random HTTP
          status of ``codes`` or, if ``drops`` is true, sometimes no response. ``seed`` is the seed
          of the random choices
outcomes  the Compute API accepts the call, but the operation fails with ``code`` and ``message``
capacity  there is no capacity for ``acceleratorType`` (``v4-*``)
quota     ``generation`` (``v4``) and ``tier`` ("spot", "on-demand") have a quota of ``chips`` chips
late      ``worker`` (``pod-w1``, ``pod-*``) boots ``delaySeconds`` later than the other workers,
          and its TPU becomes READY without it
reuse     a new TPU gets the IP addresses that were released last
========  ============================================================================
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from localcloud.api import catalog
from localcloud.api.errors import HTTP_STATUS, invalid

LONGEST_DELAY_S = 60.0
TIERS = ("spot", "on-demand")


@dataclass
class Fault:
    """An injected fault.

    ``remaining`` is how often it can still occur; None means without limit. ``started_at`` is its
    start on the clock time.monotonic(). ``details`` are the fields that are specific to its kind.
    ``draws`` is the number of random choices that a ``mix`` fault has made, by method.
    """

    method: str
    zone: str
    remaining: int | None
    for_seconds: float | None
    details: Mapping[str, Any]
    started_at: float = field(default_factory=time.monotonic)
    draws: Counter[str] = field(default_factory=Counter)

    @property
    def is_over(self) -> bool:
        """Whether the fault can't occur any more."""
        end = self.started_at + self.for_seconds if self.for_seconds else math.inf
        return self.remaining == 0 or time.monotonic() >= end

    def use(self) -> Mapping[str, Any]:
        """Count an occurrence of the fault; return its details."""
        if self.remaining is not None:
            self.remaining -= 1
        return self.details

    def show(self) -> dict[str, Any]:
        """Return the fault as JSON with the same fields as a request that injects a fault.

        Its field ``times`` is how often the fault can still occur.
        """
        common = {"method": self.method, "zone": self.zone, "times": self.remaining}
        return {
            **{key: value for key, value in common.items() if value not in ("", None)},
            **({"forSeconds": self.for_seconds} if self.for_seconds else {}),
            **self.details,
        }


def _code(value: Any) -> bool:
    return type(value) is int and value in HTTP_STATUS


def _number(minimum: float, maximum: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and minimum <= value <= maximum


def _generation(value: Any) -> bool:
    return any(name.startswith(f"{value}-") for name in catalog.ACCELERATORS)


@dataclass(frozen=True)
class _Field:
    """What is allowed in one field of a request that injects a fault.

    ``text`` describes the allowed values in error messages; ``allows`` returns whether a value is
    allowed. ``default`` is the value if a request omits the field; None: the field is required.
    """

    text: str
    allows: Callable[[Any], bool]
    default: Any = None


def _operation_code(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Z][A-Z0-9_]*", value))


_CODES = ", ".join(map(str, HTTP_STATUS))
_SEED = _Field("a whole number", lambda value: type(value) is int, 0)
_FIELDS: Mapping[str, Mapping[str, _Field]] = {
    "errors": {"code": _Field(f"one of {_CODES}", _code)},
    "latency": {"delaySeconds": _Field(f"0 to {LONGEST_DELAY_S:.0f}", _number(0, LONGEST_DELAY_S))},
    "drops": {"when": _Field("before or after", ("before", "after").__contains__, "before")},
    "mix": {
        "seed": _SEED,
        "share": _Field("0 to 1", _number(0, 1)),
        "codes": _Field(
            f"a list of {_CODES}",
            lambda value: isinstance(value, list) and bool(value) and all(map(_code, value)),
            [429, 503],
        ),
        "drops": _Field("true or false", lambda value: isinstance(value, bool), True),
    },
    "outcomes": {
        "code": _Field("a code such as QUOTA_EXCEEDED", _operation_code, "INTERNAL_ERROR"),
        "message": _Field("a text", lambda value: isinstance(value, str), ""),
    },
    "capacity": {
        "acceleratorType": _Field(
            f"one of {', '.join(catalog.ACCELERATORS)} or a pattern such as v4-*",
            lambda value: any(fnmatchcase(name, str(value)) for name in catalog.ACCELERATORS),
            "*",
        )
    },
    "quota": {
        "chips": _Field("a number of chips", lambda value: type(value) is int and value >= 0),
        "generation": _Field("a generation such as v4", _generation, ""),
        "tier": _Field("spot or on-demand", TIERS.__contains__, ""),
    },
    "late": {
        "worker": _Field(
            "a worker such as pod-w1, or a pattern",
            lambda value: isinstance(value, str) and bool(value),
        ),
        "delaySeconds": _Field("0 to 3600", _number(0, 3600)),
    },
    "reuse": {},
}
KINDS = tuple(_FIELDS)
_CALL_KINDS = ("errors", "latency", "drops", "mix", "outcomes")


def read_faults(
    request: Mapping[str, Any], methods: Collection[str]
) -> tuple[list[str] | None, dict[str, list[Fault]]]:
    """Parse a request to inject faults; return the zones to make unreachable, and faults by kind.

    ``request`` is the request's body. The zones are None if the request has no ``unreachable``.
    ``methods`` are the names of all API methods. If the request is invalid, raises HTTP 400 that
    names the allowed values.
    """
    for key in request:
        if key not in ("unreachable", *KINDS):
            known = ", ".join(("unreachable", *KINDS))
            raise invalid(key, f'Unknown fault "{key}"; known: {known}')
    unreachable = _list(request, "unreachable") if "unreachable" in request else None
    for zone in unreachable or ():
        _check_zone(zone)
    faults = {
        kind: [_fault(kind, entry, methods) for entry in _list(request, kind)]
        for kind in KINDS
        if kind in request
    }
    return unreachable, faults


def _fault(kind: str, entry: Any, methods: Collection[str]) -> Fault:
    fields = _FIELDS[kind]
    common = ["zone", "forSeconds"]
    if kind != "quota":
        common.append("times")
    if kind in _CALL_KINDS:
        common.append("method")
    if not isinstance(entry, dict) or not entry.keys() <= {*fields, *common}:
        known = ", ".join([*fields, *common])
        raise invalid(kind, f"{entry!r} is not valid; expected an object with the keys: {known}")
    details = {name: _read(kind, name, allowed, entry) for name, allowed in fields.items()}
    method = entry.get("method", "*") if kind in _CALL_KINDS else ""
    if kind in _CALL_KINDS and not any(fnmatchcase(name, str(method)) for name in methods):
        raise invalid(kind, f'Unknown method "{method}"; known: {", ".join(sorted(methods))}')
    if zone := entry.get("zone", ""):
        _check_zone(zone)
    times, seconds = entry.get("times"), entry.get("forSeconds")
    if times is not None and (type(times) is not int or times < 0):
        raise invalid(kind, f"times is {times!r}; it must be a whole number, 0 or more")
    if seconds is not None and not _number(0.001, 1e9)(seconds):
        raise invalid(kind, f"forSeconds is {seconds!r}; it must be a number, 0.001 to 1e9")
    return Fault(method, zone, times, seconds, details)


def _read(kind: str, name: str, allowed: _Field, entry: Mapping[str, Any]) -> Any:
    value = entry.get(name, allowed.default)
    if name not in entry and allowed.default is not None:
        return value
    if not allowed.allows(value):
        raise invalid(kind, f"{name} is {value!r}, not {allowed.text}")
    return value


def _check_zone(zone: Any) -> None:
    if zone not in catalog.ZONES:
        raise invalid("zone", f'Unknown zone "{zone}"; known: {", ".join(catalog.ZONES)}')


def _list(request: Mapping[str, Any], key: str) -> list[Any]:
    value = request[key]
    if not isinstance(value, list):
        raise invalid(key, f"{key} is {value!r}, not a list")
    return value
