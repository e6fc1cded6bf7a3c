"""Which items of a list, in which order: the plain part of Google's ``filter`` and ``orderBy``.

Taken are comparisons joined by AND (``type=v4-8 AND name:us-central1``): ``=`` and ``!=`` with
``*`` for any text, ``:`` for "has it inside"; a list's fields match if one entry does. Whatever
else https://google.aip.dev/160 has is refused, never passed over.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from localcloud.api.errors import invalid
from localcloud.api.routing import camel_case

_TERM = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(!=|=|:)\s*(\"[^\"]*\"|'[^']*'|[^\s\"'()]+)\s*")
_ORDER = re.compile(r"\s*([A-Za-z_][\w.]*)(?:\s+(asc|desc))?\s*")
Item = Mapping[str, Any]


@dataclass(frozen=True)
class _Term:
    path: tuple[str, ...]
    operator: str
    value: str

    def holds(self, item: Item) -> bool:
        found = [_text(value) for value in _values(item, self.path)] or [""]
        if self.operator == ":":
            return any(self.value.strip("*").lower() in text.lower() for text in found)
        # A bracket is a bracket: only the star stands for other text.
        pattern = re.sub(r"([\[?])", r"[\1]", self.value)
        matches = any(fnmatchcase(text, pattern) for text in found)
        return matches == (self.operator == "=")


def chosen(text: str, fields: Sequence[str]) -> Callable[[Item], bool]:
    """Read a ``filter``; give the test for one item. Raises a 400 that names the fields."""
    terms = []
    for part in re.split(r"\s+AND\s+", text.strip()) if text.strip() else ():
        found = _TERM.fullmatch(part)
        if found is None:
            raise invalid("filter", f"filter '{part}' is not FIELD=VALUE, FIELD!=VALUE, FIELD:TEXT")
        path = _path("filter", found[1], fields)
        terms.append(_Term(path, found[2], found[3].strip("\"'")))
    return lambda item: all(term.holds(item) for term in terms)


def ordered(items: Sequence[Item], text: str, fields: Sequence[str]) -> list[Item]:
    """Sort by an ``orderBy`` such as ``type desc, name``; raises a 400 that names the fields."""
    result = list(items)
    for part in reversed(text.split(",") if text.strip() else []):
        found = _ORDER.fullmatch(part)
        if found is None:
            raise invalid("orderBy", f"orderBy '{part}' is not FIELD or FIELD desc")
        path = _path("orderBy", found[1], fields)
        result.sort(key=lambda it: [*map(_text, _values(it, path))], reverse=found[2] == "desc")
    return result


def _path(parameter: str, name: str, fields: Sequence[str]) -> tuple[str, ...]:
    camel = ".".join(camel_case(word) for word in name.split("."))
    if camel not in fields:
        raise invalid(parameter, f"{parameter} has '{name}'; there are {', '.join(fields)}")
    return tuple(camel.split("."))


def _values(item: Any, path: tuple[str, ...]) -> Iterator[Any]:
    if isinstance(item, list):
        for entry in item:
            yield from _values(entry, path)
    elif not path:
        yield item
    elif isinstance(item, Mapping) and path[0] in item:
        yield from _values(item[path[0]], path[1:])


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
