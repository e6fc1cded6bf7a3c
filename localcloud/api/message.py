"""Message types of Google's APIs: validate requests, and select the fields of an API version.

JSON follows proto3 (https://protobuf.dev/programming-guides/json): false and empty values are
omitted, 64-bit integers are strings, field names are in camelCase or snake_case.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api.errors import invalid
from localcloud.api.routing import camel_case

MAX_LABELS = 64
_LABEL_KEY, _LABEL_VALUE = re.compile(r"[^\W\d_][\w-]{0,62}"), re.compile(r"[\w-]{0,63}")
_INT64 = re.compile(r"-?(0|[1-9][0-9]{0,18})")


@dataclass(frozen=True)
class Message:
    """A message type; ``fields`` maps each field's name to its kind (None: output-only)."""

    fields: Mapping[str, Any]

    def read(self, value: Any, path: str) -> dict[str, Any]:
        """Validate the message and return the fields to store.

        Omits output-only fields and empty values; keeps empty messages (``{}``), because their
        presence has a meaning. Raises HTTP 400 that names the invalid field.
        """
        if not isinstance(value, dict):
            raise invalid(path, f"{path} is {_shorten(value)}, not an object")
        stored_fields = {}
        for name, item in value.items():
            key = camel = camel_case(name)
            if camel not in self.fields:
                raise invalid(path, f'Unknown name "{name}" at {path}: no such field')
            kind = self.fields[camel]
            if kind is None or item is None:
                continue
            if isinstance(kind, StoredAs):
                key, kind = kind.name, kind.kind
            checked = read(item, kind, f"{path}.{camel}")
            if isinstance(kind, Message) or checked:
                stored_fields[key] = checked
        return stored_fields


@dataclass(frozen=True)
class Repeated:
    """A list of items of one kind.

    With ``or_one``, a request may have a single object instead of the list.
    """

    kind: Any
    or_one: bool = False

    def read(self, value: Any, path: str) -> list[Any]:
        """Validate a list from a request; return its items in the form in which they are stored."""
        if self.or_one and isinstance(value, dict):
            value = [value]
        if not isinstance(value, list):
            raise invalid(path, f"{path} is {_shorten(value)}, not a list")
        return [read(item, self.kind, f"{path}[{i}]") for i, item in enumerate(value)]


class StringMap:
    """A field whose value is an object with arbitrary keys and string values, such as metadata."""

    def read(self, value: Any, path: str) -> dict[str, str]:
        """Return the object; raise HTTP 400 if it is no object or a value is not a string."""
        if not isinstance(value, dict):
            raise invalid(path, f"{path} is {_shorten(value)}, not an object")
        for key, item in value.items():
            if not isinstance(item, str):
                raise invalid(f"{path}.{key}", f"{path}.{key} is {_shorten(item)}, not a string")
        return dict(value)


class Labels(StringMap):
    """A map of labels that are valid according to Google's rules.

    See https://cloud.google.com/resource-manager/docs/labels-overview.
    """

    def read(self, value: Any, path: str) -> dict[str, str]:
        """Return the labels; raise HTTP 400 if one has an invalid key or value."""
        labels = super().read(value, path)
        if len(labels) > MAX_LABELS:
            raise invalid(path, f"{path} has {len(labels)} labels; {MAX_LABELS} are allowed")
        for key, item in labels.items():
            if not _LABEL_KEY.fullmatch(key) or key != key.lower():
                raise invalid(
                    path,
                    f"{path} has the key {_shorten(key)}; expected 1 to 63 lower-case letters, "
                    "digits, '_' and '-', starting with a letter",
                )
            if not _LABEL_VALUE.fullmatch(item) or item != item.lower():
                raise invalid(
                    f"{path}.{key}",
                    f"{path}.{key} is {_shorten(item)}; expected up to 63 lower-case letters, "
                    "digits, '_' and '-'",
                )
        return labels


@dataclass(frozen=True)
class Choice:
    """An enum with the allowed names; ``unset`` is the name that means no value."""

    names: tuple[str, ...]
    unset: str | None = None

    def read(self, value: Any, path: str) -> str:
        """Return the enum's name in a request; "" if it is the name ``unset``.

        Raises HTTP 400 if the name is not allowed.
        """
        if self.unset is not None and value == self.unset:
            return ""
        if value not in self.names:
            allowed = ", ".join(self.names)
            raise invalid(path, f"{path} is {_shorten(value)}; it must be one of {allowed}")
        return value


class Int64:
    """A 64-bit integer: stored as a string; a request may contain a JSON number instead."""

    def read(self, value: Any, path: str) -> str:
        """Return the integer as a string; "" if it is 0."""
        text = str(value) if type(value) is int else value
        if not isinstance(text, str) or not _INT64.fullmatch(text):
            raise invalid(path, f"{path} is {_shorten(value)}, not a whole number")
        return "" if text == "0" else text


@dataclass(frozen=True)
class StoredAs:
    """A field that is stored under ``name``, which is the field's name in another API version."""

    name: str
    kind: Any


def read(value: Any, kind: Any, path: str) -> Any:
    """Validate a value from a request and return it as stored.

    ``kind`` is what the value must be: a Python type, or an instance of a class of this module.
    ``path`` names the value, such as ``node.labels``. Raises HTTP 400 that names the invalid field.
    """
    if not isinstance(kind, type):
        return kind.read(value, path)
    if type(value) is not kind:
        raise invalid(path, f"{path} is {_shorten(value)}; expected the type {kind.__name__}")
    return value


def select_fields(stored: Any, kind: Any) -> Any:
    """Return a stored value with only the fields of ``kind``, an API version's message type."""
    if isinstance(kind, Repeated):
        return [select_fields(item, kind.kind) for item in stored]
    if not isinstance(kind, Message):
        return stored
    selected = {}
    for name, field in kind.fields.items():
        key, inner = (field.name, field.kind) if isinstance(field, StoredAs) else (name, field)
        if key in stored:
            selected[name] = select_fields(stored[key], inner)
    return selected


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
