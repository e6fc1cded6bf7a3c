r"""Which items of a list Compute's ``filter`` means: ``name = x``, or the older ``name eq REGEX``.

Of the two syntaxes of https://cloud.google.com/compute/docs/reference/rest/v1/firewalls/list the
comparisons are taken that ``selection`` has, and ``eq`` and ``ne`` with a regular expression for
the whole value, which gcloud writes (``name eq ".*\bx\b.*"``); each may stand in brackets.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localcloud.api.errors import invalid
from localcloud.api.selection import chosen

_TERM = re.compile(r"\(?\s*(\w+)\s+(eq|ne)\s+(\"[^\"]*\"|'[^']*'|\S+?)\s*\)?")
Item = Mapping[str, Any]


def meant(text: str, fields: Sequence[str]) -> Callable[[Item], bool]:
    """Read a ``filter``; give the test for one item. Raises a 400 that names the fields."""
    found = _TERM.fullmatch(text.strip())
    if found is None:
        return chosen(_without_brackets(text), fields)
    name, positive, value = found[1], found[2] == "eq", found[3].strip("\"'")
    if name not in fields:
        raise invalid("filter", f"filter has '{name}'; there are {', '.join(fields)}")
    try:
        pattern = re.compile(value)
    except re.error as error:
        said = f"filter '{value}' is no regular expression: {error}"
        raise invalid("filter", said) from None
    return lambda item: bool(pattern.fullmatch(str(item.get(name, "")))) == positive


def _without_brackets(text: str) -> str:
    text = text.strip()
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
