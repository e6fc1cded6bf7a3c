"""The table of routes: which path and verb is which method of the API."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from localcloud.api.errors import ApiError, invalid
from localcloud.api.versions import Version

# Every Google API knows these system parameters (https://cloud.google.com/apis/docs/system-parameters).
SYSTEM_PARAMETERS = frozenset(
    {
        "$.xgafv",
        "$alt",
        "$prettyPrint",
        "alt",
        "callback",
        "fields",
        "key",
        "prettyPrint",
        "quotaUser",
        "uploadType",
        "upload_protocol",
    }
)


@dataclass(frozen=True)
class Call:
    """One request on its way to its method: the path's names, the query, the body."""

    names: Mapping[str, str]
    query: Mapping[str, str]
    content: bytes
    #: By a fault: the error, by code and message, that the call's operation ends with.
    ends_with: Mapping[str, str] | None = None
    #: The version of the Cloud TPU API whose path was called.
    version: Version = Version.V2

    def json(self) -> dict[str, Any]:
        """Read the body as a JSON object; an empty body is an empty one. Raises a 400."""
        if not self.content.strip():
            return {}
        try:
            value = json.loads(self.content)
        except ValueError as error:
            raise invalid("", f"The request's body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise invalid("", "The request's body is JSON, but no object")
        return value


Handler = Callable[[Call], Mapping[str, Any]]


@dataclass(frozen=True)
class Route:
    """One method: its name (``nodes.list``), verb, path template and query parameters.

    A template's ``{name}`` stands for one segment of the path, up to ``/`` or ``:``. One that
    ``begins`` an operation of Compute's can be told what that ends with.
    """

    name: str
    verb: str
    template: str
    handler: Handler
    query: tuple[str, ...] = ()
    public: bool = False
    begins: bool = False
    pattern: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts = re.split(r"(\{\w+\})", self.template)
        regex = "".join(
            f"(?P<{part[1:-1]}>[^/:]+)" if part.startswith("{") else re.escape(part)
            for part in parts
        )
        object.__setattr__(self, "pattern", re.compile(regex))

    @property
    def version(self) -> Version:
        """The version of the Cloud TPU API that it belongs to; v2 for one of another API."""
        first = self.template.split("/")[1]
        return Version(first) if first in Version else Version.V2


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)

    def find(self, verb: str, target: str) -> tuple[Route, Mapping[str, str]] | None:
        """Give the route for a request target and the names in its path, None without one."""
        path = urlsplit(target).path
        for route in self._routes:
            if route.verb == verb and (match := route.pattern.fullmatch(path)):
                return route, {name: unquote(text) for name, text in match.groupdict().items()}
        return None


def query_of(route: Route, target: str) -> dict[str, str]:
    """Read the query of a request target; raise a 400 for a parameter the method doesn't have."""
    query = {}
    for name, value in parse_qsl(urlsplit(target).query, keep_blank_values=True):
        if name in SYSTEM_PARAMETERS:
            continue
        camel = camel_case(name)
        if camel not in route.query:
            raise invalid(name, f'Unknown name "{name}": {route.name} has no such query parameter')
        query[camel] = value
    return query


def camel_case(name: str) -> str:
    """Turn ``page_size`` into ``pageSize``: JSON of protocol buffers may be spelt either way."""
    head, *tail = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)


def no_such_method(verb: str, target: str) -> ApiError:
    """Say that no method has this path and verb."""
    return ApiError(404, f"The API has no method for {verb} {urlsplit(target).path}")
