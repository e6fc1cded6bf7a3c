"""Filtering and sorting of lists: Google's query parameters ``filter`` and ``orderBy``.

A filter is one or more comparisons joined by AND (``type=v4-8 AND name:us-central1``). The
operators are ``=``, ``!=`` and ``:`` (contains). In the value of ``=`` and ``!=``, ``*`` stands for
any text. If a field is a list, one matching entry is enough. Other syntax of
https://google.aip.dev/160 is rejected. In the Compute API, a comparison may be in parentheses, and
the operators ``eq`` and ``ne`` compare a field with a regular expression
(https://cloud.google.com/compute/docs/reference/rest/v1/firewalls/list).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from localcloud.api.errors import invalid
from localcloud.api.routing import camel_case

_FIELD, _VALUE = r"([A-Za-z_][\w.]*)", r"(\"[^\"]*\"|'[^']*'|[^\s\"'()]+)"
_TERM = re.compile(rf"{_FIELD}(\s*!=|\s*=|\s*:)\s*{_VALUE}")
_COMPUTE_TERM = re.compile(rf"\(?\s*{_FIELD}(\s*!=|\s*=|\s*:|\s+eq\s|\s+ne\s)\s*{_VALUE}\s*\)?")
_ORDER = re.compile(r"\s*([A-Za-z_][\w.]*)(?:\s+(asc|desc))?\s*")
Item = Mapping[str, Any]


def parse_filter(
    text: str, fields: Sequence[str], *, is_compute: bool = False
) -> Callable[[Item], bool]:
    """Return the predicate for the filter ``text`` of the Cloud TPU API or of Compute.

    Raises HTTP 400 for invalid syntax, or for a field that is not one of ``fields``.
    """
    clauses = re.split(r"\s+AND\s+", text.strip()) if text.strip() else []
    term = _COMPUTE_TERM if is_compute else _TERM
    tests = [_test(clause, term, fields) for clause in clauses]
    return lambda item: all(test(item) for test in tests)


def _test(clause: str, term: re.Pattern[str], fields: Sequence[str]) -> Callable[[Item], bool]:
    match = term.fullmatch(clause)
    if match is None:
        reason = f"filter '{clause}' is not FIELD=VALUE, FIELD!=VALUE or FIELD:TEXT"
        raise invalid("filter", reason)
    path, operator = _path("filter", match[1], fields), match[2].strip()
    pattern, flags = match[3].strip("\"'"), re.DOTALL
    if operator not in ("eq", "ne"):
        pattern = ".*".join(map(re.escape, pattern.split("*")))
    if operator == ":":
        pattern, flags = f".*{pattern}.*", re.DOTALL | re.IGNORECASE
    try:
        expression = re.compile(pattern, flags)
    except re.error as error:
        reason = f"filter '{pattern}' is not a regular expression: {error}"
        raise invalid("filter", reason) from None
    is_negative = operator in ("!=", "ne")

    def test(item: Item) -> bool:
        texts = [_text(value) for value in _values(item, path)] or [""]
        return any(expression.fullmatch(text) for text in texts) != is_negative

    return test


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
