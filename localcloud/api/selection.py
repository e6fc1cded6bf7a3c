"""Filtering and sorting of lists: Google's query parameters ``filter`` and ``orderBy``.

A filter is one or more comparisons joined by AND (``type=v4-8 AND name:us-central1``). The
operators are ``=``, ``!=`` and ``:`` (contains). In the value of ``=`` and ``!=``, ``*`` stands for
any text. If a field is a list, one matching entry is enough. Other syntax of
https://google.aip.dev/160 is rejected. Compute filters can also have the older form
``name eq REGEX`` (https://cloud.google.com/compute/docs/reference/rest/v1/firewalls/list).
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
        texts = [_text(value) for value in _values(item, self.path)] or [""]
        if self.operator == ":":
            return any(self.value.strip("*").lower() in text.lower() for text in texts)
        # Escape fnmatch's brackets and question marks: in a filter, only the star is a wildcard.
        pattern = re.sub(r"([\[?])", r"[\1]", self.value)
        matches = any(fnmatchcase(text, pattern) for text in texts)
        return matches == (self.operator == "=")


def parse_filter(text: str, fields: Sequence[str]) -> Callable[[Item], bool]:
    """Return the predicate for the filter ``text``.

    Raises HTTP 400 for invalid syntax, or for a field that is not one of ``fields``.
    """
    terms = []
    for clause in re.split(r"\s+AND\s+", text.strip()) if text.strip() else ():
        match = _TERM.fullmatch(clause)
        if match is None:
            raise invalid(
                "filter", f"filter '{clause}' is not FIELD=VALUE, FIELD!=VALUE or FIELD:TEXT"
            )
        path = _path("filter", match[1], fields)
        terms.append(_Term(path, match[2], match[3].strip("\"'")))
    return lambda item: all(term.holds(item) for term in terms)


def ordered(items: Sequence[Item], text: str, fields: Sequence[str]) -> list[Item]:
    """Return the items sorted by ``text``, a value of ``orderBy`` such as ``type desc, name``.

    Raises HTTP 400 for invalid syntax, or for a field that is not one of ``fields``.
    """
    result = list(items)
    for term in reversed(text.split(",") if text.strip() else []):
        match = _ORDER.fullmatch(term)
        if match is None:
            raise invalid("orderBy", f"orderBy '{term}' is not FIELD or FIELD desc")
        path = _path("orderBy", match[1], fields)
        result.sort(key=lambda item: [*_values(item, path)], reverse=match[2] == "desc")
    return result


def _path(parameter: str, name: str, fields: Sequence[str]) -> tuple[str, ...]:
    camel = ".".join(camel_case(word) for word in name.split("."))
    if camel not in fields:
        raise invalid(parameter, f"{parameter}: unknown field '{name}'; known: {', '.join(fields)}")
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


_COMPUTE_TERM = re.compile(r"\(?\s*(\w+)\s+(eq|ne)\s+(\"[^\"]*\"|'[^']*'|\S+?)\s*\)?")


def parse_compute_filter(text: str, fields: Sequence[str]) -> Callable[[Item], bool]:
    """Return the predicate for a Compute ``filter``, which may also use ``eq`` and ``ne``.

    ``eq`` and ``ne`` compare with a regular expression that must match the whole value; gcloud
    sends, for example, ``name eq ".*\\bx\\b.*"``. Raises HTTP 400 for invalid syntax or unknown
    fields.
    """
    match = _COMPUTE_TERM.fullmatch(text.strip())
    if match is None:
        return parse_filter(_without_brackets(text), fields)
    name, positive, value = match[1], match[2] == "eq", match[3].strip("\"'")
    if name not in fields:
        raise invalid("filter", f"filter: unknown field '{name}'; known: {', '.join(fields)}")
    try:
        pattern = re.compile(value)
    except re.error as error:
        message = f"filter '{value}' is not a regular expression: {error}"
        raise invalid("filter", message) from None
    return lambda item: bool(pattern.fullmatch(str(item.get(name, "")))) == positive


def _without_brackets(text: str) -> str:
    text = text.strip()
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
