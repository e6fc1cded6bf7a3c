"""Routing of HTTP requests: maps HTTP verb and path to an API method and version."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from localcloud.api.errors import invalid
from localcloud.api.versions import Version

# Query parameters that every Google API accepts
# (https://cloud.google.com/apis/docs/system-parameters).
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
    """One call of an API method: the variables in the path, the query and the request body."""

    names: Mapping[str, str]
    query: Mapping[str, str]
    content: bytes
    #: Error (code and message) of the call's operation, if an injected fault makes it fail.
    ends_with: Mapping[str, str] | None = None
    #: The version of the Cloud TPU API in the path.
    version: Version = Version.V2

    def json(self) -> dict[str, Any]:
        """Parse the request body; {} if empty. Raises HTTP 400 if the body is not a JSON object."""
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
    """One API method: its name (``nodes.list``), HTTP verb, path template and query parameters.

    ``{name}`` in the template matches one segment of the path, up to ``/`` or ``:``. A
    ``public`` method can be called without a token.
    """

    name: str
    verb: str
    template: str
    handler: Handler
    query: tuple[str, ...] = ()
    public: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The regular expression of the paths, with a group for each variable."""
        parts = re.split(r"(\{\w+\})", self.template)
        return re.compile(
            "".join(
                f"(?P<{part[1:-1]}>[^/:]+)" if part.startswith("{") else re.escape(part)
                for part in parts
            )
        )

    @property
    def version(self) -> Version:
        """The version of the Cloud TPU API in the path template; v2 for other APIs."""
        first = self.template.split("/")[1]
        return Version(first) if first in Version else Version.V2


def find_route(
    routes: Iterable[Route], verb: str, target: str
) -> tuple[Route, Mapping[str, str]] | None:
    """Return the route for an HTTP verb and a target, and the variables in the path.

    The target is the path with the query. Returns None if no route matches.
    """
    path = urlsplit(target).path
    for route in routes:
        if route.verb == verb and (match := route.pattern.fullmatch(path)):
            return route, {name: unquote(text) for name, text in match.groupdict().items()}
    return None


def query_of(route: Route, target: str) -> dict[str, str]:
    """Return the query parameters of a request target; raise HTTP 400 for an unknown parameter."""
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
    """Convert a name such as ``page_size`` to ``pageSize``; Google's APIs accept both forms."""
    head, *tail = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)


def alpha_copies(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return v2alpha1 copies of the v2 routes that have no v2alpha1 counterpart in ``routes``."""
    originals = tuple(routes)
    existing = {(route.verb, route.template) for route in originals}
    copies = []
    for route in originals:
        if not route.template.startswith("/v2/"):
            continue
        template = route.template.replace("/v2/", "/v2alpha1/", 1)
        if (route.verb, template) not in existing:
            extra_query = ("requestId",) if route.name in ("nodes.create", "nodes.delete") else ()
            copies.append(replace(route, template=template, query=(*route.query, *extra_query)))
    return tuple(copies)


_IN_V1 = re.compile(r"(locations|acceleratorTypes|nodes|operations)\.(list|get)")


def v1_copies(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return v1 copies of the v2 routes that list and get resources.

    ``gcloud compute tpus list`` uses v1. The other methods of v1 are for the older TPU Node
    architecture, which Google no longer offers.
    """
    originals = [route for route in routes if _IN_V1.fullmatch(route.name)]
    return tuple(
        replace(route, template=route.template.replace("/v2/", "/v1/", 1)) for route in originals
    )
