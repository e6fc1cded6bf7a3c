"""Responses to metadata requests, as from Compute Engine's metadata server.

For the query parameters see https://cloud.google.com/compute/docs/metadata/querying-metadata.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localcloud.api.metadata import Attributes, Lines, Token, Tree

ROOT = ("computeMetadata", "v1")
TEXT, JSON = "application/text", "application/json"
# Function that returns an access token, as a JSON object, for a service account's email.
Tokens = Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True)
class Reply:
    """A response: code, body, content type, and the ``location`` of a redirect."""

    code: int
    body: str
    kind: str = TEXT
    location: str = ""

    @property
    def etag(self) -> str:
        """Value of the ETag header: a hash of the body."""
        return hashlib.sha256(self.body.encode()).hexdigest()[:16]


def answer(tree: Tree, path: str, query: Mapping[str, str], tokens: Tokens) -> Reply:
    """Return the response to a GET of ``path`` in the metadata ``tree``.

    The response contains the value of a leaf, or the names in a directory. With ``recursive`` in
    the query, it contains all that is below the directory. ``tokens`` returns an account's token.
    """
    found = _find({ROOT[0]: {ROOT[1]: tree}}, [part for part in path.split("/") if part])
    if found is None:
        return Reply(404, f"{path} is not in this machine's metadata\n")
    recursive = query.get("recursive", "").lower() == "true"
    kind = query.get("alt", "json" if recursive else "text").lower()
    if kind not in ("json", "text"):
        return Reply(400, f"alt is {kind}, not json or text\n")
    if isinstance(found, Token):
        return Reply(200, json.dumps(tokens(found)), JSON)
    if not _is_directory(found):
        if path.endswith("/"):
            return Reply(404, f"{path} is not a directory\n")
        return _leaf(found, kind)
    if not recursive:
        if not path.endswith("/"):
            return Reply(301, "", location=f"{path}/")
        names = [f"{name}/" if _is_directory(it) else name for name, it in _entries(found)]
        return Reply(200, "".join(f"{name}\n" for name in names))
    if kind == "json":
        return Reply(200, json.dumps(_json(found)), JSON)
    return Reply(200, "".join(f"{name} {text}\n" for name, text in _flat(found)))


def _find(tree: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        if not _is_directory(tree):
            return None
        tree = dict(_entries(tree)).get(part)
    return tree


def _is_directory(value: Any) -> bool:
    return isinstance(value, Mapping | list)


def _entries(directory: Any) -> list[tuple[str, Any]]:
    if isinstance(directory, Mapping):
        return sorted(directory.items())
    return [(str(index), value) for index, value in enumerate(directory)]


def _leaf(value: Any, kind: str) -> Reply:
    if kind == "json":
        return Reply(200, json.dumps(_json(value)), JSON)
    return Reply(200, _text(value))


def _text(value: Any) -> str:
    return "".join(f"{line}\n" for line in value) if isinstance(value, Lines) else str(value)


def _flat(directory: Any) -> list[tuple[str, str]]:
    """Return path and text of every leaf below a directory, except tokens."""
    found = []
    for name, value in _entries(directory):
        if _is_directory(value):
            found += [(f"{name}/{below}", text) for below, text in _flat(value)]
        elif not isinstance(value, Token):
            found.append((name, _text(value).strip()))
    return found


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        own = isinstance(value, Attributes)
        return {
            name if own else _camel_case(name): _json(it)
            for name, it in _entries(value)
            if not isinstance(it, Token)
        }
    if isinstance(value, list | Lines):
        return [_json(it) for it in value]
    return value


def _camel_case(name: str) -> str:
    """Convert ``machine-type`` to ``machineType``; return an account's email unchanged."""
    if "@" in name:
        return name
    head, *tail = name.split("-")
    return head + "".join(word.capitalize() for word in tail)
