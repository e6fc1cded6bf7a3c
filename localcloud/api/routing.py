"""Routes: which verb and path is which method of the API, in which versions."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from localcloud.api.errors import ApiError, invalid
from localcloud.api.versions import Version

# Accepted by every Google API (https://cloud.google.com/apis/docs/system-parameters).
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
    """One request to a method: the path's names, the query, the body."""

    names: Mapping[str, str]
    query: Mapping[str, str]
    content: bytes
    #: The error (code and message) with which an injected fault ends the call's operation.
    ends_with: Mapping[str, str] | None = None
    #: The version of the Cloud TPU API in the path.
    version: Version = Version.V2

    def json(self) -> dict[str, Any]:
        """Parse the body as a JSON object; an empty body is an empty object. Raises a 400."""
        if not self.content.strip():
            return {}
        try:
            value = json.loads(self.content)
        except ValueError as error:
            raise invalid("", f"The request's body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise invalid("", "The request's body is JSON, but not an object")
        return value


Handler = Callable[[Call], Mapping[str, Any]]


@dataclass(frozen=True)
class Route:
    """One method: its name (``nodes.list``), verb, path template and query parameters.

    ``{name}`` in the template matches one segment of the path, up to ``/`` or ``:``. A fault can
    end the Compute operation of a method that ``begins`` one.
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
        """The version of the Cloud TPU API in its path; v2 for other APIs."""
        first = self.template.split("/")[1]
        return Version(first) if first in Version else Version.V2


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)

    def find(self, verb: str, target: str) -> tuple[Route, Mapping[str, str]] | None:
        """Return the route for a request target and the names in its path, or None."""
        path = urlsplit(target).path
        for route in self._routes:
            if route.verb == verb and (match := route.pattern.fullmatch(path)):
                return route, {name: unquote(text) for name, text in match.groupdict().items()}
        return None


def query_of(route: Route, target: str) -> dict[str, str]:
    """Parse the query of a request target; raise a 400 for an unknown parameter."""
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
    """Convert ``page_size`` to ``pageSize``: JSON of protocol buffers may use either."""
    head, *tail = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)


def no_such_method(verb: str, target: str) -> ApiError:
    """Return the 404 for a path and verb that no method has."""
    return ApiError(404, f"The API has no method for {verb} {urlsplit(target).path}")


def alpha_twins(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return the v2alpha1 routes of v2's methods that are not among ``routes``."""
    known = tuple(routes)
    existing = {(route.verb, route.template) for route in known}
    twins = []
    for route in known:
        if not route.template.startswith("/v2/"):
            continue
        template = route.template.replace("/v2/", "/v2alpha1/", 1)
        if (route.verb, template) not in existing:
            more = ("requestId",) if route.name in ("nodes.create", "nodes.delete") else ()
            twins.append(replace(route, template=template, query=(*route.query, *more)))
    return tuple(twins)


_V1_METHODS = ("nodes.list", "nodes.get", "operations.list", "operations.get")


def v1_twins(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return the v1 routes that list and get TPUs and operations (``gcloud compute tpus list``).

    v1's other methods are for TPU Nodes, which Google no longer offers.
    """
    return tuple(
        replace(route, template=route.template.replace("/v2/", "/v1/", 1))
        for route in routes
        if route.name in _V1_METHODS and route.template.startswith("/v2/")
    )
